//! The report of the evaluation as one HTML file.

use super::cell::{Cell, Point, digits};
use std::fmt::Write as _;

const STYLE: &str = "body{font-family:sans-serif;max-width:72em;margin:1em auto}table{border-collapse:collapse;margin:1em 0}\
    td,th{border:1px solid #ccc;padding:2px 8px;text-align:left}td.n{text-align:right}";

/// The page: for each figure, which is the part of a point's name before the first slash, its charts, as SVG, and its cells.
///
/// # Panics
/// Never: writing to a string does not fail.
#[must_use]
pub fn html(title: &str, points: &[Point], charts: &[(&str, String)]) -> String {
    let mut text = format!(
        "<!doctype html>\n<html lang=\"en\"><meta charset=\"utf-8\"><title>{0}</title><style>{STYLE}</style>\n<h1>{0}</h1>\n",
        escape(title)
    );
    let mut figures: Vec<&str> = points.iter().map(figure).collect();
    figures.dedup();
    for name in figures {
        put(&mut text, format_args!("<h2>{}</h2>\n", escape(name)));
        for (_, svg) in charts.iter().filter(|(of, _)| *of == name) {
            text += svg;
        }
        text += "<table><tr><th>cell<th>path<th>unit<th>asked<th>floor<th>median (extremes)\n";
        for point in points.iter().filter(|point| figure(point) == name) {
            let number = |value: Option<f64>| value.map_or_else(String::new, digits);
            let class = if matches!(point.cell, Cell::Not(_)) { "" } else { " class=n" };
            put(
                &mut text,
                format_args!(
                    "<tr><td>{}<td>{}<td>{}<td class=n>{}<td class=n>{}<td{class}>{}\n",
                    escape(&point.name),
                    escape(point.path),
                    escape(point.unit),
                    number(point.asked),
                    number(point.floor),
                    escape(&point.cell.to_string()),
                ),
            );
        }
        text += "</table>\n";
    }
    text
}

fn figure(point: &Point) -> &str {
    point.name.split('/').next().unwrap_or("")
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

fn put(text: &mut String, arguments: std::fmt::Arguments<'_>) {
    text.write_fmt(arguments).expect("writing to a string does not fail");
}

#[cfg(test)]
mod tests {
    use super::super::cell::Spread;
    use super::*;

    #[test]
    fn every_cell_is_on_the_page_and_text_is_no_markup() {
        let point = |name: &str, cell| Point {
            name: name.into(),
            path: "zram",
            unit: "us",
            asked: Some(16.0),
            floor: Some(1.7),
            cell,
        };
        let points = [
            point("fig5/a", Cell::Measured(Spread::of(&[16.1, 15.9, 17.0]))),
            point("fig5/b", Cell::Floor),
            point("fig6/c", Cell::Not("needs <root>".into())),
        ];
        let page = html("a & b", &points, &[("fig6", crate::Plot::default().to_svg())]);
        for expected in ["a &amp; b", "<td>fig5/a", "16.1 (15.9..17.0)", ">floor", "needs &lt;root&gt;"] {
            assert!(page.contains(expected), "{expected}: {page}");
        }
        assert_eq!(page.matches("<svg").count(), 1);
        assert!(page.find("<svg").unwrap() > page.find("<h2>fig6").unwrap());
    }
}
