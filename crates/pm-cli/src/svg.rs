//! A drawing of a heap: a cell for each range, filled from below by use.
//!
//! By hand: plotters draws each part of a cell as an element with colours of its own, so that a picture of 2,048 cells is far longer
//! and looks the same on a dark screen; here a colour is a class of the style, and all its cells are one path.

use crate::cells::{Cells, Shares, Wear};
use crate::report::{bytes, count};
use std::fmt::{self, Write as _};

/// Pixels: a cell with the gap after it, and the margins.
const CELL: usize = 10;
const STEP: usize = CELL + 1;
const LEFT: usize = 112;
const MARGIN: usize = 16;
const ROW: usize = 20;

/// Cells in a row of the picture.
const COLUMNS: usize = 64;

/// One in so many rows has its offset in front.
const LABELLED: usize = 4;

/// Shades of wear: one for half the most writes and above, one for each halving below, and the last for all the rest.
const SHADES: u32 = 5;

const STYLE: &str = "svg{background:#fff;color:#222;font:12px ui-monospace,monospace}text{fill:currentColor}\
.h{font-weight:bold}.dim{opacity:.65}.none{fill:#d9d9de}.allocated{fill:#3468c0}.free{fill:#bcd9b5}.lost{fill:#d0312d}\
.w1{fill:#f6dcb0}.w2{fill:#f0b968}.w3{fill:#e08a2e}.w4{fill:#b9510f}.w5{fill:#7c1d05}\
@media(prefers-color-scheme:dark){svg{background:#16181c;color:#ddd}.none{fill:#2b2f36}.allocated{fill:#6c9bf0}\
.free{fill:#2f5434}.lost{fill:#ff6b64}\
.w1{fill:#4a2c12}.w2{fill:#83430f}.w3{fill:#c26a1b}.w4{fill:#eda64c}.w5{fill:#ffe2ad}}";

/// The picture of a heap, as the text of a file, with a second one below it if the wear is known.
pub(crate) fn svg(title: &str, cells: &Cells, wear: Option<&Wear>) -> String {
    let mut picture = Picture { body: String::new(), y: MARGIN };
    picture.draw(title, cells, wear).expect("a string takes all that is written to it");
    let (width, height) = (LEFT + COLUMNS * STEP + MARGIN, picture.y + MARGIN);
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" width=\"{width}\" \
         height=\"{height}\" role=\"img\">\n<title>{}</title>\n<style>{STYLE}</style>\n{}</svg>\n",
        escaped(title),
        picture.body
    )
}

struct Picture {
    body: String,
    /// The position of the next element.
    y: usize,
}

impl Picture {
    fn draw(&mut self, title: &str, cells: &Cells, wear: Option<&Wear>) -> fmt::Result {
        self.text(MARGIN, "h", title)?;
        self.text(MARGIN, "dim", &format!("a cell is {}", bytes(cells.cell_bytes())))?;
        let sum = |share: fn(&Shares) -> u64| bytes(cells.shares.iter().map(share).sum());
        self.legend(&[
            ("allocated", format!("allocated: {}", sum(|shares| shares.allocated))),
            ("free", format!("free: {}", sum(|shares| shares.free))),
            ("lost", format!("lost: {}", sum(|shares| shares.lost))),
        ])?;
        self.shares(cells)?;
        let Some(wear) = wear else { return Ok(()) };
        self.y += ROW;
        self.text(MARGIN, "h", "writes to the line of each cell that has most")?;
        let hottest =
            wear.hottest.map(|(offset, most)| format!(", {most} of them to the line at {offset:#x}"));
        let all = count(wear.total, "write", "writes");
        let line = format!("{all}{}; {} elsewhere in the file", hottest.unwrap_or_default(), wear.elsewhere);
        self.text(MARGIN, "dim", &line)?;
        let most = wear.hottest.map_or(0, |(_, most)| most);
        let shades = (1..=SHADES).filter_map(|shade| {
            let (low, high) = (least_of(shade, most), least_of(shade + 1, most).saturating_sub(1));
            let high = if shade == SHADES { most } else { high };
            (low <= high).then(|| {
                (format!("w{shade}"), if low == high { format!("{low}") } else { format!("{low} to {high}") })
            })
        });
        let legend: Vec<(String, String)> =
            [("none".to_owned(), "0".to_owned())].into_iter().chain(shades).collect();
        self.legend(&legend)?;
        self.wear(cells, wear, most)
    }

    /// A row of squares with their meanings.
    fn legend(&mut self, entries: &[(impl AsRef<str>, String)]) -> fmt::Result {
        let (top, mut x) = (self.y, MARGIN);
        for (class, text) in entries {
            rect(&mut self.body, class.as_ref(), x, top + 2, CELL)?;
            self.y = top;
            self.text(x + STEP + 4, "", text)?;
            x += STEP + 24 + text.len() * 8;
        }
        self.y = top + ROW;
        Ok(())
    }

    fn shares(&mut self, cells: &Cells) -> fmt::Result {
        let [mut none, mut allocated, mut free, mut lost] = [const { String::new() }; 4];
        for (cell, shares) in cells.shares.iter().enumerate() {
            let (x, top) = (LEFT + cell % COLUMNS * STEP, self.y + cell / COLUMNS * STEP);
            // From below; lost space is visible even if it is small.
            let mut bottom = top as f64 + CELL as f64;
            let mut part = |path: &mut String, bytes: u64, least: f64| {
                let height = (bytes as f64 / cells.cell_bytes() as f64 * CELL as f64).max(least);
                let height = if bytes == 0 { 0.0 } else { height.min(bottom - top as f64) };
                bottom -= height;
                if height > 0.0 {
                    write!(path, "M{x} {bottom:.1}h{CELL}v{height:.1}h-{CELL}z")
                } else {
                    Ok(())
                }
            };
            part(&mut lost, shares.lost, 3.0)?;
            part(&mut allocated, shares.allocated, 0.5)?;
            part(&mut free, shares.free, 0.0)?;
            write!(none, "M{x} {top}h{CELL}v{CELL}h-{CELL}z")?;
        }
        self.grid(cells, &[("none", none), ("allocated", allocated), ("free", free), ("lost", lost)])
    }

    fn wear(&mut self, cells: &Cells, wear: &Wear, most: u64) -> fmt::Result {
        let mut paths: Vec<(String, String)> = (0..=SHADES)
            .map(|shade| (if shade == 0 { "none".to_owned() } else { format!("w{shade}") }, String::new()))
            .collect();
        for (cell, &writes) in wear.most.iter().enumerate() {
            let (x, top) = (LEFT + cell % COLUMNS * STEP, self.y + cell / COLUMNS * STEP);
            let path = &mut paths[shade_of(writes, most) as usize].1;
            write!(path, "M{x} {top}h{CELL}v{CELL}h-{CELL}z")?;
        }
        self.grid(cells, &paths)
    }

    /// The paths, with offsets in front of some rows.
    fn grid(&mut self, cells: &Cells, paths: &[(impl AsRef<str>, String)]) -> fmt::Result {
        for (class, path) in paths.iter().filter(|(_, path)| !path.is_empty()) {
            writeln!(self.body, "<path class=\"{}\" d=\"{path}\"/>", class.as_ref())?;
        }
        let rows = cells.shares.len().div_ceil(COLUMNS);
        let top = self.y;
        for row in (0..rows).step_by(LABELLED) {
            self.y = top + row * STEP;
            self.text(MARGIN, "dim", &format!("{:#x}", cells.offset(row * COLUMNS)))?;
        }
        self.y = top + rows * STEP;
        Ok(())
    }

    /// A row of text.
    fn text(&mut self, x: usize, class: &str, text: &str) -> fmt::Result {
        writeln!(
            self.body,
            "<text class=\"{class}\" x=\"{x}\" y=\"{}\">{}</text>",
            self.y + CELL,
            escaped(text)
        )?;
        self.y += ROW;
        Ok(())
    }
}

/// The shade of so many writes, where the most are `most`.
fn shade_of(writes: u64, most: u64) -> u32 {
    if writes == 0 {
        0
    } else {
        (1..=SHADES).rev().find(|&shade| writes >= least_of(shade, most)).unwrap_or(1)
    }
}

/// The least writes that have a shade.
fn least_of(shade: u32, most: u64) -> u64 {
    if shade == 1 { 1 } else { most.div_ceil(1 << (SHADES + 1 - shade.min(SHADES))).max(1) }
}

fn rect(body: &mut String, class: &str, x: usize, y: usize, side: usize) -> fmt::Result {
    writeln!(body, "<rect class=\"{class}\" x=\"{x}\" y=\"{y}\" width=\"{side}\" height=\"{side}\"/>")
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shades_halve_writes() {
        let shades = [0, 1, 62, 63, 125, 249, 250, 499, 500, 1000].map(|writes| shade_of(writes, 1000));
        assert_eq!(shades, [0, 1, 1, 2, 3, 3, 4, 4, 5, 5]);
        assert_eq!([1, 2].map(|writes| shade_of(writes, 2)), [5, 5]);
    }

    #[test]
    fn titles_are_escaped() {
        let picture = svg("<a> & \"b\"", &Cells::new(0..4096), None);
        assert!(picture.contains("<title>&lt;a&gt; &amp; \"b\"</title>"), "{picture}");
    }
}
