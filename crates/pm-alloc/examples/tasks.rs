//! A persistent list of tasks that survives a kill at any moment. The program starts a copy of itself that adds tasks, kills it, and checks the list.

use pm_alloc::{Heap, HeapOptions, TxError};
use pm_core::{Link, Persist, field};
use std::error::Error;
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

#[derive(Clone, Copy, Persist)]
#[repr(C)]
struct Task<'p> {
    next: Link<'p, Task<'p>>,
    text: [u8; 48],
}

#[derive(Clone, Copy, Persist)]
#[repr(C)]
struct List<'p> {
    first: Link<'p, Task<'p>>,
    count: u64,
}

fn add(heap: &Heap, text: &str) -> Result<u64, TxError> {
    heap.transaction(|tx| {
        let list = match tx.root::<List>("tasks")? {
            Some(list) => list,
            None => {
                let list = tx.alloc(&List { first: Link::NULL, count: 0 })?;
                tx.set_root("tasks", list)?;
                list
            }
        };
        let mut task = Task { next: tx.read(list)?.first, text: [0; 48] };
        task.text[..text.len()].copy_from_slice(text.as_bytes());
        let task = tx.alloc(&task)?;
        // The transaction is atomic: the new block, the link to it and the count are committed together or not at all.
        tx.write(list.field(field!(List, first)), &task)?;
        tx.edit(list.field(field!(List, count)), |count| {
            *count += 1;
            *count
        })
    })
}

fn main() -> Result<(), Box<dyn Error>> {
    let path = std::env::temp_dir().join("tasks.pm");
    if std::env::args().nth(1).as_deref() == Some("fill") {
        let heap = Heap::create(&path, 64 << 20, &HeapOptions::new())?;
        for number in 1.. {
            println!("{}", add(&heap, &format!("task number {number}"))?); // The task is durable now.
        }
    }
    if path.exists() {
        std::fs::remove_file(&path)?;
    }
    let mut child = Command::new(std::env::current_exe()?).arg("fill").stdout(Stdio::piped()).spawn()?;
    let lines = BufReader::new(child.stdout.take().ok_or("the child has no pipe")?).lines();
    let acknowledged = lines.take(1000 + std::process::id() as usize % 1000).last().ok_or("no output")??;
    child.kill()?; // SIGKILL: the child cannot handle it.
    child.wait()?;
    let heap = Heap::open(&path, &HeapOptions::new())?;
    let found = heap.view(|view| -> Result<u64, Box<dyn Error>> {
        let list = view.read(view.root::<List>("tasks")?.ok_or("the heap has no list")?)?;
        let (mut walked, mut at) = (0, list.first);
        while !at.is_null() {
            (walked, at) = (walked + 1, view.read(at)?.next);
        }
        Ok((walked == list.count).then_some(walked).ok_or("the list and its count differ")?)
    })?;
    println!("killed after it acknowledged {acknowledged} tasks; found {found}, all linked");
    Ok(())
}
