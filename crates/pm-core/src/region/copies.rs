//! Copies of pages in a private mapping. They hold the stores to a scratch region, which do not change the file.

use super::mapping::Mapping;
use super::{file, page_sync};
use core::ops::Range;
use std::fs::File;
use std::io::Result;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;

/// The number of pages whose words one read of `/proc/self/pagemap` returns.
const STEP_PAGES: usize = 8192;

/// Bits of a word of `/proc/self/pagemap`, which has one word per page. (The crate procfs has them too, but allocates a list of all flags.)
const PAGE_FILE: u64 = 1 << 61;
const PAGE_SWAPPED: u64 = 1 << 62;
const PAGE_PRESENT: u64 = 1 << 63;

/// Like [`file::next_data`], for a private mapping of the file: copies over holes of the file are data too. If the kernel does not report which pages
/// are copies, all of the mapping is data.
pub(super) fn next_data(file: impl AsFd, mapping: &Mapping, rest: Range<u64>) -> Option<Range<u64>> {
    let data = file::next_data(file, rest.clone());
    let hole = rest.start..data.as_ref().map_or(rest.end, |data| data.start);
    match first_copies(mapping, hole) {
        Ok(None) => data,
        Ok(copies) => copies,
        Err(_) => Some(rest),
    }
}

/// The first run of adjacent copies in `hole`. (mincore(2) does not find them: a copy can be swapped out, and a page of the file can be resident.)
///
/// # Source
/// Linux `Documentation/admin-guide/mm/pagemap.rst`.
fn first_copies(mapping: &Mapping, hole: Range<u64>) -> Result<Option<Range<u64>>> {
    let page = page_sync::host_page_bytes() as u64;
    let (first, end) = (hole.start / page, hole.end.div_ceil(page));
    let pagemap = File::open("/proc/self/pagemap")?;
    let base = mapping.base().addr() as u64 / page;
    let mut words = vec![0; STEP_PAGES * size_of::<u64>()];
    let mut copies: Option<Range<u64>> = None;
    for start in (first..end).step_by(STEP_PAGES) {
        let count = usize::try_from(end - start).map_or(STEP_PAGES, |count| count.min(STEP_PAGES));
        let words = &mut words[..count * size_of::<u64>()];
        pagemap.read_exact_at(words, (base + start) * size_of::<u64>() as u64)?;
        for (number, word) in (start..).zip(words.as_chunks::<8>().0) {
            let word = u64::from_le_bytes(*word);
            let is_copy = word & PAGE_FILE == 0 && word & (PAGE_PRESENT | PAGE_SWAPPED) != 0;
            copies = match copies {
                None if is_copy => Some((number * page).max(hole.start)..(number + 1) * page),
                Some(run) if is_copy => Some(run.start..(number + 1) * page),
                Some(run) => return Ok(Some(run.start..run.end.min(hole.end))),
                None => None,
            };
        }
    }
    Ok(copies.map(|run| run.start..run.end.min(hole.end)))
}

#[cfg(test)]
mod tests {
    use crate::{HugePages, Pmem, RegionOptions};
    use std::os::unix::fs::FileExt;

    #[test]
    fn copies_over_holes_are_data() {
        let page = rustix::param::page_size() as u64;
        let len_bytes = 3 * super::STEP_PAGES as u64 * page;
        for parent in ["/dev/shm", "."] {
            let dir = tempfile::tempdir_in(parent).unwrap();
            let path = dir.path().join("x.pm");
            let sparse = RegionOptions::new().sparse(true).huge_pages(HugePages::Never);
            drop(sparse.create(&path, len_bytes).unwrap());
            let file = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
            file.write_all_at(&[1], 100 * page).unwrap();
            let region = sparse.scratch().open(&path).unwrap();
            let all_data = || {
                let next = |data: &std::ops::Range<u64>| region.next_data(data.end);
                let parts = std::iter::successors(region.next_data(0), next);
                parts.flat_map(|part| part.start / page..part.end.div_ceil(page)).collect::<Vec<u64>>()
            };
            assert_eq!(all_data(), [100], "{parent}: pages of the file");
            region.store_u64(100 * page, 2);
            assert_eq!(region.load_u64(100 * page + 8), 0);
            assert_eq!(all_data(), [100], "{parent}: a copy of a page of the file");
            let step = super::STEP_PAGES as u64;
            for number in [7, 8, 99, step - 1, step, 3 * step - 1] {
                region.store_u64(number * page, 3);
            }
            // On tmpfs a store allocates the page of the file from which the copy is made.
            assert_eq!(all_data(), [7, 8, 99, 100, step - 1, step, 3 * step - 1], "{parent}");
            assert_eq!(region.next_data(7 * page + 8).map(|data| data.start), Some(7 * page + 8));
            assert_eq!(region.next_data(len_bytes), None);
        }
    }
}
