//! The cable is cut, and both nodes are promoted and write: when they meet again, nothing is merged silently.

use crate::drbd;
use crate::pair::{Cable, Node, Pair};
use miette::Result;

/// Writes a block at this number of 4 KiB, with this text at its begin.
fn write(node: &mut Node, block: u32, text: &str) -> Result<()> {
    let block_of = "dd of=/dev/drbd0 bs=4k count=1 conv=sync oflag=direct iflag=fullblock";
    node.check(&format!("echo {text} | {block_of} seek={block}"))?;
    Ok(())
}

/// The text at the begin of a block.
fn read(node: &mut Node, block: u32) -> Result<String> {
    let text = node.check(&format!(
        "dd if=/dev/drbd0 bs=4k count=1 skip={block} iflag=direct 2>/dev/null | head -n 1 | tr -d '\\0'"
    ))?;
    Ok(text.trim_end().to_owned())
}

#[test]
fn split_brain_is_detected_and_resolved_only_by_hand() -> Result<()> {
    let (_pair, mut nodes) = Pair::boot(32)?;
    drbd::create(&mut nodes)?;
    let [first, second] = &mut nodes;
    write(first, 0, "of-both")?;

    first.cable(Cable::Cut)?;
    for node in [&mut *first, &mut *second] {
        drbd::wait_for(node, "cs:WFConnection ro:[A-Za-z]*/Unknown ds:UpToDate")?;
    }
    second.check(drbd::PROMOTE)?;
    // One block was written by each, another by both.
    for (node, own, text) in [(&mut *first, 1, "of-node1"), (&mut *second, 2, "of-node2")] {
        write(node, own, text)?;
        write(node, 3, text)?;
    }

    first.cable(Cable::Whole)?;
    for (node, own, other, text) in [(&mut *first, 1, 2, "of-node1"), (&mut *second, 2, 1, "of-node2")] {
        drbd::wait_for(node, "cs:StandAlone ro:Primary/Unknown ds:UpToDate")?;
        node.check("dmesg | grep -q 'Split-Brain detected but unresolved, dropping connection'")?;
        assert_eq!(read(node, 0)?, "of-both");
        assert_eq!(read(node, own)?, text);
        assert_eq!(read(node, 3)?, text);
        assert_eq!(read(node, other)?, "", "nothing of the other node has arrived");
    }

    // By hand: the second node gives up what it wrote alone.
    second.check(drbd::DISCARD)?;
    first.check(drbd::CONNECT)?;
    for node in [&mut *first, &mut *second] {
        drbd::wait_until_equal(node)?;
    }
    first.check("drbdadm secondary r0")?;
    second.check(drbd::PROMOTE)?;
    let found = [0, 1, 2, 3].map(|block| read(second, block));
    let found = found.into_iter().collect::<Result<Vec<_>>>()?;
    assert_eq!(found, ["of-both", "of-node1", "", "of-node1"]);
    second.check("drbdadm secondary r0")?;
    drbd::assert_same_below(&mut nodes)
}
