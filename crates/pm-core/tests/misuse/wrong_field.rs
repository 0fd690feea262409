// A field with the type of its `Deref` target instead of its own: the target has another offset.
use pm_core::{Field, Persist, field};

#[derive(Clone, Copy, Persist)]
#[repr(C)]
struct Name {
    len: u64,
    bytes: [u8; 24],
}

impl std::ops::Deref for Name {
    type Target = [u8; 24];

    fn deref(&self) -> &[u8; 24] {
        &self.bytes
    }
}

#[derive(Clone, Copy, Persist)]
#[repr(C)]
struct Person {
    name: Name,
    age: u64,
}

fn main() {
    let _: Field<Person, [u8; 24]> = field!(Person, name);
}
