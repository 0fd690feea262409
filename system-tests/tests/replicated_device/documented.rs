//! The commands that users are told are those that the other tests run.

use crate::{drbd, md};

const PAGE: &str = include_str!("../../../docs/replication.md");

#[test]
fn configuration_and_commands_are_documented() {
    for text in [drbd::RESOURCE, md::EXPORT] {
        assert!(PAGE.contains(text), "docs/replication.md has other lines than\n{text}");
    }
    let on_one_node = |command: &str| {
        PAGE.lines().any(|line| {
            line.strip_prefix("node1$ ").or_else(|| line.strip_prefix("node2$ ")) == Some(command)
        })
    };
    let commands = [drbd::COMMANDS.as_slice(), &md::COMMANDS].concat();
    for command in commands {
        assert!(on_one_node(command), "docs/replication.md has no {command:?}");
    }
}
