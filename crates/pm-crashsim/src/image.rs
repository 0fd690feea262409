//! Images of a region: a shared base, and the few lines that differ from it.

use crate::span::{LINE, index};
use core::fmt;
use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hasher};
use std::sync::Arc;

pub(crate) type Line = [u8; LINE];
/// Lines by number.
pub(crate) type Lines = BTreeMap<u64, Line>;

/// The durable contents of a region.
///
/// Cloning one, and making one that differs in a few lines, costs nothing that grows with the region: the bytes
/// are shared.
#[derive(Clone)]
pub struct Image {
    base: Arc<[u8]>,
    /// Lines that differ from the base; later layers hide earlier ones.
    layers: Vec<Arc<Lines>>,
    /// The sum of [`fingerprint`]s: equal for equal contents over one base, however they were layered.
    fingerprint: u128,
}

impl Image {
    /// A region of `len_bytes` zeros.
    ///
    /// # Panics
    /// If the length is zero or no multiple of 64.
    #[must_use]
    pub fn zeroed(len_bytes: u64) -> Self {
        Self::from_bytes(vec![0; index(len_bytes)])
    }

    /// A region that holds `bytes`.
    ///
    /// # Panics
    /// If the length is zero or no multiple of 64.
    #[must_use]
    pub fn from_bytes(bytes: impl Into<Arc<[u8]>>) -> Self {
        let base = bytes.into();
        let len_bytes = base.len();
        assert!(
            len_bytes > 0 && len_bytes.is_multiple_of(LINE),
            "a region is whole lines of {LINE} bytes, and {len_bytes} bytes are not"
        );
        Self { base, layers: Vec::new(), fingerprint: 0 }
    }

    /// Length in bytes.
    #[must_use]
    pub fn len_bytes(&self) -> u64 {
        self.base.len() as u64
    }

    /// A copy of the whole contents. Costs time proportional to the region.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = self.base.to_vec();
        for (&number, line) in self.layers.iter().flat_map(|layer| layer.iter()) {
            let start = index(number) * LINE;
            bytes[start..start + LINE].copy_from_slice(line);
        }
        bytes
    }

    /// The contents of the line with that number.
    pub(crate) fn line(&self, number: u64) -> Line {
        match self.layers.iter().rev().find_map(|layer| layer.get(&number)) {
            Some(line) => *line,
            None => self.base_line(number),
        }
    }

    /// What tells images over one base apart.
    pub(crate) const fn fingerprint(&self) -> u128 {
        self.fingerprint
    }

    /// How the fingerprint changes when the line with that number changes from `old` to `new`. To be combined
    /// by exclusive or.
    pub(crate) fn fingerprint_change(&self, number: u64, old: &Line, new: &Line) -> u128 {
        let base = self.base_line(number);
        let of = |line: &Line| if *line == base { 0 } else { fingerprint(number, line) };
        of(old) ^ of(new)
    }

    /// The image with `lines` in place of what was there; `change` is how the fingerprint changes by it.
    pub(crate) fn overlaid(&self, lines: Arc<Lines>, change: u128) -> Self {
        let mut layers = Vec::with_capacity(self.layers.len() + 2);
        layers.extend_from_slice(&self.layers);
        if !lines.is_empty() {
            layers.push(lines);
        }
        Self { base: Arc::clone(&self.base), layers, fingerprint: self.fingerprint ^ change }
    }

    fn base_line(&self, number: u64) -> Line {
        let start = index(number) * LINE;
        let mut line = [0; LINE];
        line.copy_from_slice(&self.base[start..start + LINE]);
        line
    }
}

/// A region of that many zeros.
///
/// # Panics
/// If the length is zero or no multiple of 64.
impl From<u64> for Image {
    fn from(len_bytes: u64) -> Self {
        Self::zeroed(len_bytes)
    }
}

/// The same image: cloning shares the bytes.
impl From<&Self> for Image {
    fn from(image: &Self) -> Self {
        image.clone()
    }
}

impl fmt::Debug for Image {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let changed_lines: usize = self.layers.iter().map(|layer| layer.len()).sum();
        f.debug_struct("Image")
            .field("len_bytes", &self.len_bytes())
            .field("changed_lines", &changed_lines)
            .field("fingerprint", &format_args!("{:032x}", self.fingerprint))
            .finish()
    }
}

/// A line's share of an image's fingerprint: two differently seeded hashes, so that two of a billion images
/// meeting by chance stays out of reach.
fn fingerprint(number: u64, line: &Line) -> u128 {
    let half = |seed: u8| {
        let mut hasher = DefaultHasher::new();
        hasher.write_u8(seed);
        hasher.write_u64(number);
        hasher.write(line);
        u128::from(hasher.finish())
    };
    half(0) << 64 | half(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layers_hide_earlier_ones_and_fingerprints_forget_the_way() {
        let image = Image::from_bytes(vec![7; 256]);
        let put = |image: &Image, byte: u8| {
            let new = [byte; LINE];
            let change = image.fingerprint_change(1, &image.line(1), &new);
            image.overlaid(Arc::new(Lines::from([(1, new)])), change)
        };
        let direct = put(&image, 9);
        let detour = put(&put(&image, 8), 9);
        assert_eq!(detour.to_bytes(), direct.to_bytes());
        assert_eq!(detour.line(1), [9; LINE]);
        assert_eq!(detour.fingerprint(), direct.fingerprint());
        assert_ne!(direct.fingerprint(), image.fingerprint());
        assert_eq!(put(&detour, 7).fingerprint(), image.fingerprint());
    }
}
