//! `pmfs map`: a picture of the pages in use.

use crate::pool::{at, at_file, open_read_only};
use miette::Result;
use pm_cli_common::say;
use pm_fs::Frame;
use std::path::Path;

/// The most characters of a picture, and those of a line.
const CHARACTERS_MAX: usize = 1024;
const LINE_CHARACTERS: usize = 64;

/// Prints the use of each frame.
pub(crate) fn map(file: &Path, json: bool) -> Result<()> {
    let fs = open_read_only(file)?;
    let frames = fs.frames().map_err(|error| at_file(file, error))?;
    if json {
        let used: Vec<u64> = frames.iter().map(|frame| frame.used).collect();
        let pages: Vec<u64> = frames.iter().map(|frame| frame.pages).collect();
        return say(serde_json::json!({ "file": file, "frame_pages": pages, "frame_used": used }));
    }
    let (each, picture) = picture(&frames);
    let of = if each == 1 { "a frame".to_owned() } else { format!("{each} frames") };
    say(format_args!(
        "{}: {of} of 2 MiB a character: . free, - less than half in use, + half or more, # all",
        at(file)
    ))?;
    let mut lines = picture.as_bytes().chunks(LINE_CHARACTERS);
    lines.try_for_each(|line| say(String::from_utf8_lossy(line)))
}

/// The number of frames that a character stands for, and the characters.
fn picture(frames: &[Frame]) -> (usize, String) {
    let each = frames.len().div_ceil(CHARACTERS_MAX).max(1);
    let character = |frames: &[Frame]| {
        let [pages, used] = [|frame: &Frame| frame.pages, |frame: &Frame| frame.used]
            .map(|field| frames.iter().map(field).sum::<u64>());
        match used {
            0 => '.',
            _ if used == pages => '#',
            _ if 2 * used < pages => '-',
            _ => '+',
        }
    };
    (each, frames.chunks(each).map(character).collect())
}
