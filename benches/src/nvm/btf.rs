//! BTF, the kernel's description of its own types: where the members of a structure are.
//!
//! # Source
//! Documentation/bpf/btf.rst of Linux.

use std::io;

/// The running kernel's.
const KERNEL: &str = "/sys/kernel/btf/vmlinux";
const MAGIC: u16 = 0xeb9f;
const KIND_STRUCT: u32 = 4;
const KIND_UNION: u32 = 5;
/// More than any structure of the kernel nests, so that a cycle in a corrupt file ends.
const DEEPEST: u32 = 16;

/// Why an offset is not known.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BtfError {
    /// The file cannot be read: the kernel was built without it.
    #[error("{KERNEL} cannot be read: {0}")]
    Io(#[from] io::Error),
    /// It is not BTF that this reader knows.
    #[error("the kernel's BTF ends, or is not BTF, at byte {0}")]
    Corrupt(usize),
    /// There is no such structure or member.
    #[error("the kernel has no {0}")]
    Missing(String),
}

/// The types of a kernel.
#[derive(Debug)]
pub struct Btf {
    bytes: Vec<u8>,
    strings: usize,
    /// The position of each type's record. The first has the number 1.
    types: Vec<usize>,
}

impl Btf {
    /// The running kernel's.
    pub fn of_kernel() -> Result<Self, BtfError> {
        Self::parse(std::fs::read(KERNEL)?)
    }

    /// Parses a file of this machine's byte order.
    pub fn parse(bytes: Vec<u8>) -> Result<Self, BtfError> {
        let mut btf = Self { bytes, strings: 0, types: Vec::new() };
        if btf.word(0)? & 0xffff != u32::from(MAGIC) {
            return Err(BtfError::Corrupt(0));
        }
        let header = btf.position(4)?;
        let begin = header.saturating_add(btf.position(8)?);
        let end = begin.saturating_add(btf.position(12)?);
        btf.strings = header.saturating_add(btf.position(16)?);
        let mut at = begin;
        while at < end {
            btf.types.push(at);
            at = at.saturating_add(12).saturating_add(btf.tail_bytes(at)?);
        }
        Ok(btf)
    }

    /// The offset in bytes of a member of a structure. `path` may lead through structures within it, as `bi_iter.bi_size`; anonymous ones are
    /// searched.
    pub fn offset(&self, structure: &str, path: &str) -> Result<u32, BtfError> {
        let missing = || BtfError::Missing(format!("struct {structure} with a member {path}"));
        let mut found = None;
        for &at in &self.types {
            if self.kind(at)? == KIND_STRUCT && self.name(at)? == structure.as_bytes() {
                found = Some(at);
                break;
            }
        }
        let mut at = found.ok_or_else(missing)?;
        let mut bits = 0;
        let mut names = path.split('.').peekable();
        while let Some(name) = names.next() {
            let (member_bits, of) = self.member(at, name.as_bytes(), DEEPEST)?.ok_or_else(missing)?;
            bits += member_bits;
            if names.peek().is_some() {
                at = self.record(of)?;
            }
        }
        if bits % 8 == 0 { Ok(bits / 8) } else { Err(missing()) }
    }

    /// The offset in bits and the type of a member.
    fn member(&self, at: usize, name: &[u8], depth: u32) -> Result<Option<(u32, u32)>, BtfError> {
        let has_sizes = self.word(at + 4)? >> 31 == 1;
        for index in 0..self.count(at)? {
            let member = at + 12 + index * 12;
            let raw = self.word(member + 8)?;
            let bits = if has_sizes { raw & 0x00ff_ffff } else { raw };
            let (found, of) = (self.name(member)?, self.word(member + 4)?);
            if found == name {
                return Ok(Some((bits, of)));
            }
            if found.is_empty() && depth > 0 {
                let inner = self.record(of)?;
                let is_aggregate = matches!(self.kind(inner)?, KIND_STRUCT | KIND_UNION);
                if is_aggregate && let Some((inner_bits, of)) = self.member(inner, name, depth - 1)? {
                    return Ok(Some((bits + inner_bits, of)));
                }
            }
        }
        Ok(None)
    }

    /// The length of what follows a record's three words.
    fn tail_bytes(&self, at: usize) -> Result<usize, BtfError> {
        let count = self.count(at)?;
        match self.kind(at)? {
            // int, variable, declaration tag
            1 | 14 | 17 => Ok(4),
            // array
            3 => Ok(12),
            // structure, union, data section, 64-bit enumeration
            KIND_STRUCT | KIND_UNION | 15 | 19 => Ok(count * 12),
            // enumeration, function's prototype
            6 | 13 => Ok(count * 8),
            // pointer, forward, typedef, volatile, const, restrict, function, float, type tag
            2 | 7..=12 | 16 | 18 => Ok(0),
            _ => Err(BtfError::Corrupt(at)),
        }
    }

    fn record(&self, number: u32) -> Result<usize, BtfError> {
        let index = usize::try_from(number).ok().and_then(|number| number.checked_sub(1));
        index.and_then(|index| self.types.get(index)).copied().ok_or(BtfError::Corrupt(0))
    }

    fn kind(&self, at: usize) -> Result<u32, BtfError> {
        Ok(self.word(at + 4)? >> 24 & 0x1f)
    }

    fn count(&self, at: usize) -> Result<usize, BtfError> {
        Ok(usize::from(self.word(at + 4)?.to_le_bytes()[0])
            | usize::from(self.word(at + 4)?.to_le_bytes()[1]) << 8)
    }

    /// The string whose offset is at `at`.
    fn name(&self, at: usize) -> Result<&[u8], BtfError> {
        let begin = self.strings.saturating_add(self.position(at)?);
        let rest = self.bytes.get(begin..).ok_or(BtfError::Corrupt(at))?;
        let end = rest.iter().position(|byte| *byte == 0).ok_or(BtfError::Corrupt(begin))?;
        Ok(&rest[..end])
    }

    fn word(&self, at: usize) -> Result<u32, BtfError> {
        let bytes = self.bytes.get(at..).and_then(|rest| rest.first_chunk::<4>());
        // The kernel writes its own byte order, and all machines that this runs on are little-endian.
        bytes.map(|bytes| u32::from_le_bytes(*bytes)).ok_or(BtfError::Corrupt(at))
    }

    fn position(&self, at: usize) -> Result<usize, BtfError> {
        usize::try_from(self.word(at)?).map_err(|_| BtfError::Corrupt(at))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An int, a structure with it in an anonymous union, and one with that structure in it.
    fn file() -> Vec<u8> {
        let strings = b"\0int\0inner\0size\0outer\0iter\0";
        let info = |kind: u32, count: u32| kind << 24 | count;
        let types: [u32; 27] = [
            1,
            info(1, 0),
            4,
            32, // 1: int
            0,
            info(KIND_UNION, 1),
            4,
            11,
            1,
            0, // 2: union { int size }
            5,
            info(KIND_STRUCT, 1),
            8,
            0,
            2,
            32, // 3: struct inner, the union at byte 4
            16,
            info(KIND_STRUCT, 1),
            16,
            22,
            3,
            64, // 4: struct outer, inner at byte 8
            0,
            info(2, 0),
            4, // 5: a pointer
            0,
            0,
        ];
        let types: Vec<u8> = types[..25].iter().flat_map(|word| word.to_le_bytes()).collect();
        let len = |bytes: &[u8]| u32::try_from(bytes.len()).unwrap();
        let words = [0x0001_eb9f, 24, 0, len(&types), len(&types), len(strings)];
        let header = words.iter().flat_map(|word| word.to_le_bytes());
        header.chain(types).chain(strings.iter().copied()).collect()
    }

    #[test]
    fn members_are_found_through_structures_and_unions() {
        let btf = Btf::parse(file()).unwrap();
        assert_eq!(btf.offset("inner", "size").unwrap(), 4);
        assert_eq!(btf.offset("outer", "iter").unwrap(), 8);
        assert_eq!(btf.offset("outer", "iter.size").unwrap(), 12);
        for (structure, path) in [("outer", "size"), ("none", "size"), ("outer", "iter.none"), ("", "")] {
            assert!(matches!(btf.offset(structure, path), Err(BtfError::Missing(_))), "{structure}.{path}");
        }
    }

    #[test]
    fn every_shorter_or_changed_file_is_error_or_answer_and_no_panic() {
        let whole = file();
        for len in 0..whole.len() {
            if let Ok(btf) = Btf::parse(whole[..len].to_vec()) {
                btf.offset("outer", "iter.size").unwrap_err();
            }
        }
        for at in 0..whole.len() {
            for value in [0, 0xff] {
                let mut changed = whole.clone();
                changed[at] = value;
                if let Ok(btf) = Btf::parse(changed) {
                    btf.offset("outer", "iter.size").ok();
                }
            }
        }
    }

    #[test]
    fn running_kernel_has_block_requests() {
        match Btf::of_kernel() {
            Ok(btf) => {
                assert!(
                    btf.offset("bio", "bi_iter.bi_size").unwrap() > btf.offset("bio", "bi_bdev").unwrap()
                );
                assert!(btf.offset("block_device", "bd_dev").unwrap() > 0);
            }
            // A kernel without BTF is one on which the benchmark says so.
            Err(error) => assert!(matches!(error, BtfError::Io(_)), "{error}"),
        }
    }
}
