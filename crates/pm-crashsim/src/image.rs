//! Images of a region: a shared base, and the few lines that differ from it.

use crate::line::{LINE, Line, Lines, fingerprint, index};
use core::fmt;
use std::sync::Arc;

static ZEROS: Line = [0; LINE];

/// Regions up to this length are flattened into bytes, where lines are found faster.
const SMALL_BYTES: u64 = 1 << 20;

/// The durable contents of a region.
///
/// Cloning an image, or deriving one that differs in a few lines, takes time independent of the length of the region: the bytes
/// are shared, and zeros are not stored.
#[derive(Clone)]
pub struct Image {
    base: Base,
    /// Lines that differ from the base.
    top: Option<Arc<Layer>>,
    /// The exclusive or of [`fingerprint`]s: equal for equal contents over one base, independent of the layers.
    fingerprint: u128,
}

#[derive(Clone)]
enum Base {
    Zeros { len_bytes: u64 },
    Bytes(Arc<[u8]>),
}

/// Lines that hide those of lower layers.
#[derive(Clone)]
struct Layer {
    lines: Lines,
    below: Option<Arc<Layer>>,
}

impl Image {
    /// A region of `len_bytes` zeros, which takes no memory.
    ///
    /// # Panics
    /// If the length is zero or not a multiple of 64.
    #[must_use]
    #[track_caller]
    pub fn zeroed(len_bytes: u64) -> Self {
        Self::new(Base::Zeros { len_bytes })
    }

    /// A region that holds `bytes`.
    ///
    /// # Panics
    /// If the length is zero or not a multiple of 64.
    #[must_use]
    #[track_caller]
    pub fn from_bytes(bytes: impl Into<Arc<[u8]>>) -> Self {
        Self::new(Base::Bytes(bytes.into()))
    }

    #[track_caller]
    fn new(base: Base) -> Self {
        let image = Self { base, top: None, fingerprint: 0 };
        let len_bytes = image.len_bytes();
        assert!(
            len_bytes > 0 && len_bytes.is_multiple_of(LINE as u64),
            "a region is whole lines of {LINE} bytes, and {len_bytes} bytes are not"
        );
        image
    }

    /// Length in bytes.
    #[must_use]
    pub fn len_bytes(&self) -> u64 {
        match &self.base {
            Base::Zeros { len_bytes } => *len_bytes,
            Base::Bytes(bytes) => bytes.len() as u64,
        }
    }

    /// A copy of the whole contents, in time proportional to the region.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = match &self.base {
            Base::Zeros { len_bytes } => vec![0; index(*len_bytes)],
            Base::Bytes(bytes) => bytes.to_vec(),
        };
        put(&mut bytes, &self.changed());
        bytes
    }

    /// The contents of the line with that number.
    pub(crate) fn line(&self, number: u64) -> &Line {
        let found = self.layers().find_map(|layer| layer.lines.get(&number));
        found.unwrap_or_else(|| self.base_line(number))
    }

    /// Identifies the contents among images over one base.
    pub(crate) const fn fingerprint(&self) -> u128 {
        self.fingerprint
    }

    /// The change of the fingerprint when the line with that number changes from `old` to `new`, to be combined by exclusive or.
    pub(crate) fn fingerprint_change(&self, number: u64, old: &Line, new: &Line) -> u128 {
        let base = self.base_line(number);
        let of = |line: &Line| if line == base { 0 } else { fingerprint(number, line) };
        of(old) ^ of(new)
    }

    /// The image with `lines` replaced; `change` is the change of the fingerprint.
    pub(crate) fn overlaid(&self, lines: Lines, change: u128) -> Self {
        let top = Layer { lines, below: self.top.clone() };
        Self { base: self.base.clone(), top: Some(Arc::new(top)), fingerprint: self.fingerprint ^ change }
    }

    /// The image with `lines` replaced, in time proportional to the lines.
    pub(crate) fn with_lines(&self, lines: Lines) -> Self {
        let change = lines.iter().fold(0, |change, (&number, line)| {
            change ^ self.fingerprint_change(number, self.line(number), line)
        });
        self.overlaid(lines, change)
    }

    /// Adds `lines` to the uppermost layer, which must exist; `change` is the change of the fingerprint.
    pub(crate) fn absorb(&mut self, lines: Lines, change: u128) {
        let top = self.top.as_mut().expect("made by `overlaid`");
        Arc::make_mut(top).lines.extend(lines);
        self.fingerprint ^= change;
    }

    /// The image with `lines` replaced, in one layer.
    pub(crate) fn with_all(&self, lines: &Lines) -> Self {
        if self.len_bytes() <= SMALL_BYTES {
            let mut bytes = self.to_bytes();
            put(&mut bytes, lines);
            return Self::from_bytes(bytes);
        }
        let mut all = self.changed();
        all.extend(lines.iter().map(|(&number, &line)| (number, line)));
        all.retain(|&number, line| line != self.base_line(number));
        let fingerprint = all.iter().fold(0, |sum, (&number, line)| sum ^ fingerprint(number, line));
        let bare = Self { base: self.base.clone(), top: None, fingerprint: 0 };
        if all.is_empty() { bare } else { bare.overlaid(all, fingerprint) }
    }

    fn layers(&self) -> impl Iterator<Item = &Layer> {
        core::iter::successors(self.top.as_deref(), |layer| layer.below.as_deref())
    }

    /// Every line of a layer that no higher layer hides.
    fn changed(&self) -> Lines {
        let mut changed = Lines::default();
        for layer in self.layers() {
            for (&number, line) in &layer.lines {
                changed.entry(number).or_insert(*line);
            }
        }
        changed
    }

    /// # Panics
    /// When the region is shorter.
    fn base_line(&self, number: u64) -> &Line {
        match &self.base {
            Base::Zeros { len_bytes } => {
                assert!(number < len_bytes / LINE as u64, "line {number} is not inside the region");
                &ZEROS
            }
            Base::Bytes(bytes) => &bytes.as_chunks().0[index(number)],
        }
    }
}

fn put(bytes: &mut [u8], lines: &Lines) {
    for (&number, line) in lines {
        let start = index(number) * LINE;
        bytes[start..start + LINE].copy_from_slice(line);
    }
}

/// A region of that many zeros.
///
/// # Panics
/// If the length is zero or not a multiple of 64.
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
        let changed_lines: usize = self.layers().map(|layer| layer.lines.len()).sum();
        f.debug_struct("Image")
            .field("len_bytes", &self.len_bytes())
            .field("changed_lines", &changed_lines)
            .field("fingerprint", &format_args!("{:032x}", self.fingerprint))
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layers_hide_lower_ones_and_fingerprints_are_independent_of_them() {
        let image = Image::from_bytes(vec![7; 256]);
        let put = |image: &Image, byte: u8| image.with_lines(Lines::from_iter([(1, [byte; LINE])]));
        let direct = put(&image, 9);
        let detour = put(&put(&image, 8), 9);
        assert_eq!(detour.to_bytes(), direct.to_bytes());
        assert_eq!(detour.line(1), &[9; LINE]);
        assert_eq!(detour.fingerprint(), direct.fingerprint());
        assert_ne!(direct.fingerprint(), image.fingerprint());
        assert_eq!(put(&detour, 7).fingerprint(), image.fingerprint());
    }

    #[test]
    fn zeros_equal_bytes_that_are_zero() {
        let lines = Lines::from_iter([(2, [5; LINE]), (0, [0; LINE])]);
        let len_bytes = 2 * SMALL_BYTES;
        let sparse = Image::zeroed(len_bytes).with_all(&lines);
        let dense = Image::from_bytes(vec![0; index(len_bytes)]).with_all(&lines);
        assert_eq!(sparse.to_bytes(), dense.to_bytes());
        assert_eq!(sparse.fingerprint(), dense.fingerprint());
        assert_eq!((sparse.line(2), sparse.line(3)), (&[5; LINE], &[0; LINE]));
        let again = sparse.with_all(&Lines::from_iter([(2, [0; LINE])]));
        assert_eq!(again.fingerprint(), 0);
        assert_eq!(Image::zeroed(1 << 40).line(7), &[0; LINE]);
    }
}
