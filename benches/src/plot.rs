//! Charts, drawn by plotters: ratios as bars, and curves.

use plotters::coord::ranged1d::{AsRangedCoord, SegmentValue, ValueFormatter};
use plotters::prelude::*;

const SIZE: (u32, u32) = (960, 420);
const FONT: &str = "sans-serif";
const LABELS: (&str, u32) = (FONT, 15);
const MET: RGBColor = RGBColor(0x2b, 0x7a, 0x4b);
const MISSED: RGBColor = RGBColor(0xb5, 0x48, 0x2a);

const DRAWN: &str = "drawing into a string does not fail";

/// An SVG of bars, each with a label, a ratio and possibly a goal. The thin line is 1.
pub(crate) fn bars(title: &str, bars: &[(String, f64, Option<f64>)]) -> String {
    let longest = bars.iter().map(|bar| bar.1.max(bar.2.unwrap_or(0.0))).fold(1.2, f64::max);
    let height = 80 + 24 * u32::try_from(bars.len()).unwrap_or(u32::MAX);
    svg((SIZE.0, height), |area| {
        // The first bar is the uppermost.
        let label = |row: &SegmentValue<usize>| match row {
            SegmentValue::CenterOf(row) => {
                bars.iter().rev().nth(*row).map_or(String::new(), |bar| bar.0.clone())
            }
            _ => String::new(),
        };
        let mut chart = ChartBuilder::on(area)
            .caption(format!("{title}: ours / theirs, more is better"), (FONT, 18))
            .margin(8)
            .x_label_area_size(24)
            .y_label_area_size(330)
            .build_cartesian_2d(0.0..longest * 1.1, (0..bars.len().max(1) - 1).into_segmented())
            .expect(DRAWN);
        let mut mesh = chart.configure_mesh();
        mesh.disable_mesh()
            .y_labels(bars.len())
            .y_label_formatter(&label)
            .label_style(LABELS)
            .draw()
            .expect(DRAWN);
        let line = |ratio: f64, row: usize, style: ShapeStyle| {
            PathElement::new(
                [(ratio, SegmentValue::Exact(row)), (ratio, SegmentValue::Exact(row + 1))],
                style,
            )
        };
        for (row, (_, ratio, goal)) in bars.iter().rev().enumerate() {
            let colour = if goal.is_none_or(|goal| *ratio >= goal) { MET } else { MISSED };
            let mut bar = Rectangle::new(
                [(0.0, SegmentValue::Exact(row)), (*ratio, SegmentValue::Exact(row + 1))],
                colour.filled(),
            );
            bar.set_margin(3, 3, 0, 0);
            let value = Text::new(format!(" {ratio:.2}"), (*ratio, SegmentValue::CenterOf(row)), LABELS);
            chart.draw_series([bar]).expect(DRAWN);
            chart.draw_series([value]).expect(DRAWN);
            chart.draw_series(goal.map(|goal| line(goal, row, BLACK.stroke_width(2)))).expect(DRAWN);
            chart.draw_series([line(1.0, row, BLACK.mix(0.5).into())]).expect(DRAWN);
        }
    })
}

/// Bars, one below the other, along a logarithmic axis.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct BarChart {
    /// The title.
    pub title: String,
    /// The unit of the values.
    pub unit: String,
    /// The names of the bars, and their values. Those that are not above zero are not drawn.
    pub bars: Vec<(String, f64)>,
}

impl BarChart {
    /// The chart as an SVG.
    ///
    /// # Panics
    /// Never: drawing into a string does not fail.
    #[must_use]
    pub fn to_svg(&self) -> String {
        let bars: Vec<&(String, f64)> = self.bars.iter().filter(|bar| bar.1 > 0.0).rev().collect();
        let low = bars.iter().map(|bar| bar.1).reduce(f64::min).unwrap_or(1.0) / 2.0;
        let high = bars.iter().map(|bar| bar.1).reduce(f64::max).unwrap_or(1.0) * 2.0;
        let label = |row: &SegmentValue<usize>| match row {
            SegmentValue::CenterOf(row) => bars.get(*row).map_or(String::new(), |bar| bar.0.clone()),
            _ => String::new(),
        };
        let height = 80 + 24 * u32::try_from(bars.len()).unwrap_or(u32::MAX);
        svg((SIZE.0, height), |area| {
            let mut chart = ChartBuilder::on(area)
                .caption(&self.title, (FONT, 18))
                .margin(8)
                .x_label_area_size(40)
                .y_label_area_size(230)
                .build_cartesian_2d((low..high).log_scale(), (0..bars.len().max(1) - 1).into_segmented())
                .expect(DRAWN);
            let mut mesh = chart.configure_mesh();
            mesh.disable_mesh().label_style(LABELS).x_desc(&self.unit);
            mesh.y_labels(bars.len()).y_label_formatter(&label).x_label_formatter(&|value| short(*value));
            mesh.draw().expect(DRAWN);
            for (row, bar) in bars.iter().enumerate() {
                let corners = [(low, SegmentValue::Exact(row)), (bar.1, SegmentValue::Exact(row + 1))];
                let mut rectangle = Rectangle::new(corners, MET.filled());
                rectangle.set_margin(3, 3, 0, 0);
                chart.draw_series([rectangle]).expect(DRAWN);
                let value = format!(" {}", short(bar.1).trim_end());
                let place = (bar.1, SegmentValue::CenterOf(row));
                chart.draw_series([Text::new(value, place, LABELS)]).expect(DRAWN);
            }
        })
    }
}

/// A curve.
#[derive(Clone, Debug, PartialEq)]
pub struct Series {
    /// Its name in the legend.
    pub name: String,
    /// Its points, in ascending order of x.
    pub points: Vec<(f64, f64)>,
}

impl Series {
    /// Reduces the curve to at most `count` points: the highest of each part of the x axis, so that a chart keeps the extremes.
    #[must_use]
    pub fn highest_of(mut self, count: usize) -> Self {
        let part = self.points.len().div_ceil(count.max(1)).max(1);
        let highest =
            |points: &[(f64, f64)]| points.iter().copied().max_by(|one, other| one.1.total_cmp(&other.1));
        self.points = self.points.chunks(part).filter_map(highest).collect();
        self
    }
}

/// Curves over an x and a y axis, each from the smallest to the largest value.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Plot {
    /// The title.
    pub title: String,
    /// The descriptions of the axes.
    pub labels: [String; 2],
    /// Which axes are logarithmic. They show counts: values below 1 are drawn as 1.
    pub logarithmic: [bool; 2],
    /// The curves.
    pub series: Vec<Series>,
}

impl Plot {
    /// The chart as an SVG.
    #[must_use]
    pub fn to_svg(&self) -> String {
        let [x, y] = [self.extent(0, |point| point.0), self.extent(1, |point| point.1)];
        match self.logarithmic {
            [false, false] => self.draw(x, y),
            [true, false] => self.draw(x.log_scale(), y),
            [false, true] => self.draw(x, y.log_scale()),
            [true, true] => self.draw(x.log_scale(), y.log_scale()),
        }
    }

    /// The range of an axis, never empty.
    fn extent(&self, axis: usize, value: impl Fn(&(f64, f64)) -> f64) -> std::ops::Range<f64> {
        let least = if self.logarithmic[axis] { 1.0 } else { f64::NEG_INFINITY };
        let values =
            || self.series.iter().flat_map(|series| &series.points).map(|point| value(point).max(least));
        let low = values().reduce(f64::min).unwrap_or(least.max(0.0));
        let high = values().fold(low, f64::max);
        low..if high > low { high } else { low + 1.0 }
    }

    fn draw<X, Y>(&self, x: X, y: Y) -> String
    where
        X: AsRangedCoord<Value = f64, CoordDescType: ValueFormatter<f64>>,
        Y: AsRangedCoord<Value = f64, CoordDescType: ValueFormatter<f64>>,
    {
        let [at_least_x, at_least_y] = self.logarithmic.map(|is| if is { 1.0 } else { f64::NEG_INFINITY });
        svg(SIZE, |area| {
            let mut chart = ChartBuilder::on(area)
                .caption(&self.title, (FONT, 18))
                .margin(8)
                .x_label_area_size(40)
                .y_label_area_size(70)
                .build_cartesian_2d(x, y)
                .expect(DRAWN);
            let mut mesh = chart.configure_mesh();
            mesh.disable_mesh().label_style(LABELS).x_desc(&self.labels[0]).y_desc(&self.labels[1]);
            mesh.x_label_formatter(&|value| short(*value)).y_label_formatter(&|value| short(*value));
            mesh.draw().expect(DRAWN);
            for (index, Series { name, points }) in self.series.iter().enumerate() {
                let colour = Palette99::pick(index).to_rgba();
                let points = points.iter().map(|&(x, y)| (x.max(at_least_x), y.max(at_least_y)));
                let curve = chart.draw_series(LineSeries::new(points, colour)).expect(DRAWN);
                curve
                    .label(name)
                    .legend(move |(x, y)| PathElement::new([(x, y), (x + 16, y)], colour.stroke_width(3)));
            }
            let mut legend = chart.configure_series_labels();
            legend
                .position(SeriesLabelPosition::MiddleRight)
                .background_style(WHITE.mix(0.8))
                .draw()
                .expect(DRAWN);
        })
    }
}

/// Runs `draw` on a white area of this size in pixels.
fn svg(size: (u32, u32), draw: impl FnOnce(&DrawingArea<SVGBackend<'_>, plotters::coord::Shift>)) -> String {
    let mut text = String::new();
    let area = SVGBackend::with_string(&mut text, size).into_drawing_area();
    area.fill(&WHITE).expect(DRAWN);
    draw(&area);
    area.present().expect(DRAWN);
    drop(area);
    text
}

/// A figure with at most four digits, and the prefix of its unit.
pub(crate) fn short(value: f64) -> String {
    let (value, prefix) = match value {
        1e9.. => (value / 1e9, " G"),
        1e6.. => (value / 1e6, " M"),
        1e3.. => (value / 1e3, " K"),
        _ => (value, "  "),
    };
    format!("{value:.*}{prefix}", if value < 10.0 { 2 } else { usize::from(value < 100.0) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bars_show_whether_goals_are_met_and_labels_are_text() {
        let svg = bars("a&b", &[("x < y".into(), 2.0, Some(1.0)), ("z".into(), 0.5, Some(0.95))]);
        assert!(svg.contains("a&amp;b") && svg.contains("x &lt; y"), "{svg}");
        assert_eq!(svg.matches("fill=\"#2B7A4B\"").count(), 1, "met: {svg}");
        assert_eq!(svg.matches("fill=\"#B5482A\"").count(), 1, "missed: {svg}");
    }

    #[test]
    fn bars_above_zero_are_drawn_with_their_values() {
        let bars = [("a<b", 3.0), ("zero", 0.0), ("c", 4000.0)].map(|(name, value)| (name.to_owned(), value));
        let svg = BarChart { title: "t".into(), unit: "us".into(), bars: bars.into() }.to_svg();
        for text in ["a&lt;b", "c", "3.00", "4.00 K", "us"] {
            assert!(svg.lines().any(|line| line.trim() == text), "{text}: {svg}");
        }
        assert!(!svg.contains("zero"), "{svg}");
        assert!(BarChart::default().to_svg().contains("<svg"));
    }

    #[test]
    fn curves_have_names_and_axes_have_units() {
        let labels = ["writes", "lines"].map(str::to_owned);
        let series = vec![Series { name: "one".into(), points: vec![(1.0, 0.0), (10.0, 0.5), (100.0, 1.0)] }];
        let svg = Plot { title: "a<b".into(), labels, logarithmic: [true, false], series }.to_svg();
        for text in ["a&lt;b", "one", "writes", "lines"] {
            assert!(svg.lines().any(|line| line == text), "{svg}");
        }
        assert!(svg.contains("<polyline"), "{svg}");
    }

    #[test]
    fn empty_and_single_point_plots_are_drawn() {
        for logarithmic in [false, true] {
            let mut plot = Plot { logarithmic: [logarithmic; 2], ..Plot::default() };
            assert!(!plot.to_svg().contains("NaN"));
            plot.series.push(Series { name: String::new(), points: vec![(0.0, 5.0)] });
            assert!(!plot.to_svg().contains("NaN"), "{}", plot.to_svg());
        }
    }

    #[test]
    fn highest_points_stay() {
        let points = (0..1000).map(|x| (f64::from(x), if x == 777 { 9.0 } else { 1.0 })).collect();
        let series = Series { name: String::new(), points }.highest_of(10);
        assert_eq!(series.points.len(), 10);
        assert!(series.points.contains(&(777.0, 9.0)));
    }
}
