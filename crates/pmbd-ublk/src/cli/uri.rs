//! Paths in addresses and in commands that are shown to be copied.

use std::fmt::Write as _;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

/// The address of a server on a Unix socket.
///
/// # Source
/// "NBD URI", doc/uri.md of the NetworkBlockDevice project; RFC 3986, 2.3 and 3.4.
pub(super) fn of_socket(socket: &Path) -> String {
    let mut uri = "nbd+unix:///?socket=".to_owned();
    for &byte in socket.as_os_str().as_bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~/".contains(&byte) {
            uri.push(char::from(byte));
        } else {
            // To a string, which takes everything.
            write!(uri, "%{byte:02X}").unwrap_or(());
        }
    }
    uri
}

/// A path as one word of a shell.
pub(super) fn shell_word(path: &Path) -> String {
    let text = path.to_string_lossy();
    if text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-._/+:@".contains(&byte)) {
        return text.into_owned();
    }
    format!("'{}'", text.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reserved_bytes_are_percent_encoded() {
        let uri = of_socket(Path::new("/run/a b&c#d%é'.sock"));
        assert_eq!(uri, "nbd+unix:///?socket=/run/a%20b%26c%23d%25%C3%A9%27.sock");
        assert_eq!(of_socket(Path::new("/run/x-1_2.~")), "nbd+unix:///?socket=/run/x-1_2.~");
    }

    #[test]
    fn words_are_quoted_where_they_must_be() {
        assert_eq!(shell_word(Path::new("/run/x.sock")), "/run/x.sock");
        assert_eq!(shell_word(Path::new("/a b'c")), r"'/a b'\''c'");
    }
}
