//! The drawing of a failure as an SVG picture for documents: legible on light and on dark pages. A library of elements would save nothing.

use super::text::wrapped;
use super::timeline::{Cell, Fate, Row, Timeline, What};
use crate::outcome::Failure;
use core::fmt::{self, Write};

const ROW: usize = 24;
/// The maximal width of a character.
const CHARACTER: usize = 8;
const LEFT: usize = 16;
/// The start of the lanes, their distance, and the widths of the columns after them.
const LANES_AT: usize = 170;
const LANE: usize = 120;
const BYTES: usize = 150;
const PLACE: usize = 330;

const STYLE: &str = "\
svg{font:13px ui-monospace,monospace;background:#fff;color:#222}\
text{fill:currentColor}.h{font-weight:600}.dim{opacity:.65}\
.lost{fill:#c62828;stroke:#c62828}.kept{fill:#b26a00;stroke:#b26a00}.safe{fill:#2e7d32;stroke:#2e7d32}\
text.lost,text.kept,text.safe{stroke:none}line{stroke-width:2}.pending{stroke-dasharray:2 4}\
@media(prefers-color-scheme:dark){svg{background:#16181c;color:#ddd}\
.lost{fill:#ff7b72;stroke:#ff7b72}.kept{fill:#e3a94d;stroke:#e3a94d}.safe{fill:#6fcf7c;stroke:#6fcf7c}}";

impl Failure {
    /// The crashes drawn as a picture for documents, legible on light and on dark pages: the text of an SVG file.
    #[must_use]
    #[expect(clippy::missing_panics_doc, reason = "writing to a string never fails")]
    pub fn to_svg(&self) -> String {
        let timelines: Vec<Timeline> = self.crashes.iter().map(Timeline::of).collect();
        let lanes = timelines.iter().map(|timeline| timeline.lanes.len()).max().unwrap_or(0);
        let width = LANES_AT + lanes * LANE + BYTES + PLACE;
        let mut picture = Picture { body: String::new(), y: ROW, width };
        picture.draw(self, &timelines).expect("writing to a string never fails");
        let height = picture.y + ROW;
        format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" width=\"{width}\" \
             height=\"{height}\" role=\"img\">\n<title>{}</title>\n<style>{STYLE}</style>\n{}</svg>\n",
            escaped(&self.message),
            picture.body
        )
    }
}

struct Picture {
    body: String,
    /// The base line of the row to draw.
    y: usize,
    width: usize,
}

impl Picture {
    fn draw(&mut self, failure: &Failure, timelines: &[Timeline]) -> fmt::Result {
        let first_line = failure.message.lines().next().unwrap_or_default();
        self.paragraph("h", first_line)?;
        for (crash, timeline) in failure.crashes.iter().zip(timelines) {
            self.y += ROW;
            self.paragraph("dim", &format!("crash {}", crash.moment))?;
            self.y += ROW;
            for (number, lane) in timeline.lanes.iter().enumerate() {
                self.text(lane_x(number) - 6, "dim", &format!("line {lane:#x}"))?;
            }
            for row in &timeline.rows {
                self.y += ROW;
                self.row(row)?;
            }
            self.y += ROW;
            let y = self.y - 4;
            writeln!(
                self.body,
                "<line class=\"lost\" x1=\"{LEFT}\" y1=\"{y}\" x2=\"{}\" y2=\"{y}\"/>",
                self.width - LEFT
            )?;
        }
        if let Some(repair) = &failure.repair {
            self.y += ROW;
            self.paragraph("safe", &repair.to_string())?;
        }
        Ok(())
    }

    fn row(&mut self, row: &Row) -> fmt::Result {
        let times = if row.count > 1 { format!(" ×{}", row.count) } else { String::new() };
        match &row.what {
            What::Gap => self.text(LEFT, "dim", &format!("{} rows", row.count))?,
            What::Event { name, thread, extent, location } => {
                let thread = thread.map(|thread| format!("t{thread} ")).unwrap_or_default();
                self.text(LEFT, "", &format!("{thread}{name}{times}"))?;
                let after = LANES_AT + row.cells.len() * LANE;
                if let Some((offset, len_bytes)) = extent {
                    self.text(after, "dim", &format!("{len_bytes} B at {offset:#x}"))?;
                }
                let name = location.file().rsplit('/').next().unwrap_or_default();
                self.text(after + BYTES, "dim", &format!("{name}:{}", location.line()))?;
            }
        }
        for (number, &cell) in row.cells.iter().enumerate() {
            self.cell(lane_x(number), cell)?;
        }
        Ok(())
    }

    fn cell(&mut self, x: usize, cell: Cell) -> fmt::Result {
        let (label, class) = match cell {
            Cell::Durable => ("", "safe"),
            Cell::Pending => ("", "kept pending"),
            Cell::Stored(Fate::Durable) => ("durable", "safe"),
            Cell::Stored(Fate::KeptEssential) => ("kept", "kept"),
            Cell::Stored(Fate::Kept) => ("kept", "dim"),
            Cell::Stored(Fate::Lost) => ("lost", "lost"),
            Cell::Stored(Fate::Torn) => ("torn", "lost"),
            Cell::Flushed => ("flushed", "kept"),
            Cell::Committed => ("durable", "safe"),
        };
        let (top, y) = (self.y - ROW + 8, self.y - 4);
        match cell {
            Cell::Stored(_) => {
                writeln!(self.body, "<circle class=\"{class}\" cx=\"{x}\" cy=\"{y}\" r=\"6\"/>")?
            }
            Cell::Flushed => {
                writeln!(self.body, "<path class=\"{class}\" d=\"M{} {top}h12l-6 {}z\"/>", x - 6, ROW - 10)?
            }
            _ => writeln!(
                self.body,
                "<line class=\"{class}\" x1=\"{x}\" y1=\"{top}\" x2=\"{x}\" y2=\"{}\"/>",
                self.y + 4
            )?,
        }
        if label.is_empty() { Ok(()) } else { self.text(x + 14, class, label) }
    }

    /// Text over the whole width, on as many rows as necessary.
    fn paragraph(&mut self, class: &str, text: &str) -> fmt::Result {
        for (number, line) in wrapped(text, (self.width - 2 * LEFT) / CHARACTER).iter().enumerate() {
            self.y += if number == 0 { 0 } else { ROW };
            self.text(LEFT, class, line)?;
        }
        Ok(())
    }

    fn text(&mut self, x: usize, class: &str, text: &str) -> fmt::Result {
        writeln!(self.body, "<text class=\"{class}\" x=\"{x}\" y=\"{}\">{}</text>", self.y, escaped(text))
    }
}

const fn lane_x(number: usize) -> usize {
    LANES_AT + number * LANE
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}
