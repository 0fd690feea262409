//! A picture of ratios: one bar each, a line where both sides are equal, a mark where the goal is.

use std::fmt::Write as _;

const LABEL_WIDTH: f64 = 330.0;
const BAR_SPACE: f64 = 400.0;
const VALUE_WIDTH: f64 = 60.0;
const ROW_HEIGHT: f64 = 24.0;
const TOP: f64 = 40.0;

/// An SVG of bars: each a label, a ratio and perhaps a goal. Longer is better; the thin line is 1.
pub(crate) fn bars(title: &str, bars: &[(String, f64, Option<f64>)]) -> String {
    let longest = bars.iter().map(|bar| bar.1.max(bar.2.unwrap_or(0.0))).fold(1.2, f64::max);
    let place = |ratio: f64| LABEL_WIDTH + ratio / longest * BAR_SPACE;
    let width = LABEL_WIDTH + BAR_SPACE + VALUE_WIDTH;
    let bottom = TOP + ROW_HEIGHT * f64::from(u32::try_from(bars.len()).unwrap_or(u32::MAX));
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{}\" \
         font-family=\"sans-serif\" font-size=\"12\">\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n\
         <text x=\"8\" y=\"20\" font-size=\"15\">{}: ours / theirs, more is better</text>\n",
        bottom + 12.0,
        escape(title),
    );
    let mut top = TOP;
    for (label, ratio, goal) in bars {
        let (end, text_y) = (place(*ratio), top + 15.0);
        let colour = if goal.is_none_or(|goal| *ratio >= goal) { "#2b7a4b" } else { "#b5482a" };
        put(
            &mut svg,
            format_args!(
                "<text x=\"{:.0}\" y=\"{text_y}\" text-anchor=\"end\">{}</text>\n\
                 <rect x=\"{LABEL_WIDTH}\" y=\"{}\" width=\"{:.1}\" height=\"{}\" fill=\"{colour}\"/>\n\
                 <text x=\"{:.1}\" y=\"{text_y}\">{ratio:.2}</text>\n",
                LABEL_WIDTH - 8.0,
                escape(label),
                top + 3.0,
                end - LABEL_WIDTH,
                ROW_HEIGHT - 6.0,
                end + 6.0,
            ),
        );
        if let Some(goal) = goal {
            let x = place(*goal);
            put(
                &mut svg,
                format_args!(
                    "<line x1=\"{x:.1}\" x2=\"{x:.1}\" y1=\"{top}\" y2=\"{}\" stroke=\"black\" \
                     stroke-width=\"2\"/>\n",
                    top + ROW_HEIGHT
                ),
            );
        }
        top += ROW_HEIGHT;
    }
    let one = place(1.0);
    put(
        &mut svg,
        format_args!(
            "<line x1=\"{one:.1}\" x2=\"{one:.1}\" y1=\"{TOP}\" y2=\"{bottom}\" stroke=\"#888\" \
             stroke-dasharray=\"3 3\"/>\n\
             </svg>\n"
        ),
    );
    svg
}

pub(crate) fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

/// Appends to a string, which cannot fail.
pub(crate) fn put(text: &mut String, arguments: std::fmt::Arguments<'_>) {
    text.write_fmt(arguments).expect("a string takes everything");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bars_are_as_long_as_their_ratios_and_labels_are_text() {
        let svg = bars("a&b", &[("x < y".into(), 2.0, Some(1.0)), ("z".into(), 0.5, Some(0.95))]);
        assert!(svg.contains("a&amp;b") && svg.contains("x &lt; y"), "{svg}");
        assert!(svg.contains("width=\"400.0\"") && svg.contains("width=\"100.0\""), "{svg}");
        assert_eq!(svg.matches("#2b7a4b").count(), 1, "met: {svg}");
        assert_eq!(svg.matches("#b5482a").count(), 1, "missed: {svg}");
    }
}
