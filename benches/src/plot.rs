//! A picture of curves: distributions, and what happened where.

use crate::chart::{escape, put};

const LEFT: f64 = 70.0;
const TOP: f64 = 40.0;
const WIDTH: f64 = 640.0;
const HEIGHT: f64 = 300.0;
const LEGEND_WIDTH: f64 = 200.0;
const COLOURS: [&str; 6] = ["#2b7a4b", "#b5482a", "#2f5d9b", "#8a6d1f", "#6b3f8f", "#555555"];

/// One curve.
#[derive(Clone, Debug, PartialEq)]
pub struct Series {
    /// What it shows.
    pub name: String,
    /// Its points, in ascending order of x.
    pub points: Vec<(f64, f64)>,
}

impl Series {
    /// At most `count` points instead of many: of each part of the x axis the highest, which is the one that a picture of
    /// extremes must not lose.
    #[must_use]
    pub fn highest_of(mut self, count: usize) -> Self {
        let part = self.points.len().div_ceil(count.max(1)).max(1);
        let highest =
            |points: &[(f64, f64)]| points.iter().copied().max_by(|one, other| one.1.total_cmp(&other.1));
        self.points = self.points.chunks(part).filter_map(highest).collect();
        self
    }
}

/// Curves over two axes that begin at the smallest values and end at the largest ones.
#[derive(Clone, Debug, PartialEq)]
pub struct Plot {
    title: String,
    labels: [String; 2],
    logarithmic: [bool; 2],
    series: Vec<Series>,
}

impl Plot {
    /// No curve yet, on linear axes.
    #[must_use]
    pub fn new(title: impl Into<String>, x: impl Into<String>, y: impl Into<String>) -> Self {
        Self {
            title: title.into(),
            labels: [x.into(), y.into()],
            logarithmic: [false; 2],
            series: Vec::new(),
        }
    }

    /// Makes the axes logarithmic, or not. Values below 1 are drawn as 1 on a logarithmic axis: it is one of counts.
    #[must_use]
    pub const fn logarithmic(mut self, x: bool, y: bool) -> Self {
        self.logarithmic = [x, y];
        self
    }

    /// Adds a curve.
    pub fn push(&mut self, series: Series) {
        self.series.push(series);
    }

    /// The picture.
    #[must_use]
    pub fn to_svg(&self) -> String {
        let points = || self.series.iter().flat_map(|series| &series.points);
        let x = Axis::new(self.logarithmic[0], points().map(|point| point.0));
        let y = Axis::new(self.logarithmic[1], points().map(|point| point.1));
        let (right, bottom) = (LEFT + WIDTH, TOP + HEIGHT);
        let mut svg = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{}\" height=\"{}\" \
             font-family=\"sans-serif\" font-size=\"12\">\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n\
             <text x=\"8\" y=\"20\" font-size=\"15\">{}</text>\n\
             <path d=\"M{LEFT} {TOP}V{bottom}H{right}\" stroke=\"black\" fill=\"none\"/>\n\
             <text x=\"{}\" y=\"{}\" text-anchor=\"middle\">{}</text>\n\
             <text transform=\"translate(16 {}) rotate(-90)\" text-anchor=\"middle\">{}</text>\n",
            right + LEGEND_WIDTH,
            bottom + 50.0,
            escape(&self.title),
            LEFT + WIDTH / 2.0,
            bottom + 38.0,
            escape(&self.labels[0]),
            TOP + HEIGHT / 2.0,
            escape(&self.labels[1]),
        );
        for value in x.ticks() {
            let (at, label) = (LEFT + x.place(value) * WIDTH, short(value));
            put(
                &mut svg,
                format_args!(
                    "<path d=\"M{at:.1} {bottom}v5\" stroke=\"black\"/>\
                     <text x=\"{at:.1}\" y=\"{}\" text-anchor=\"middle\">{label}</text>\n",
                    bottom + 18.0
                ),
            );
        }
        for value in y.ticks() {
            let (at, label) = (bottom - y.place(value) * HEIGHT, short(value));
            put(
                &mut svg,
                format_args!(
                    "<path d=\"M{LEFT} {at:.1}h-5\" stroke=\"black\"/>\
                     <text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{label}</text>\n",
                    LEFT - 8.0,
                    at + 4.0
                ),
            );
        }
        for (index, series) in self.series.iter().enumerate() {
            draw(&mut svg, index, series, &x, &y);
        }
        svg + "</svg>\n"
    }
}

/// A curve and its entry in the legend.
fn draw(svg: &mut String, index: usize, series: &Series, x: &Axis, y: &Axis) {
    let colour = COLOURS[index % COLOURS.len()];
    put(svg, format_args!("<polyline fill=\"none\" stroke=\"{colour}\" stroke-width=\"1.5\" points=\""));
    for &(at, value) in &series.points {
        let (at, value) = (LEFT + x.place(at) * WIDTH, TOP + HEIGHT - y.place(value) * HEIGHT);
        put(svg, format_args!("{at:.1},{value:.1} "));
    }
    let (left, row) = (LEFT + WIDTH + 12.0, u8::try_from(index).map_or(f64::INFINITY, f64::from));
    let top = TOP + 10.0 + row * 18.0;
    put(
        svg,
        format_args!(
            "\"/>\n<path d=\"M{left} {top}h16\" stroke=\"{colour}\" stroke-width=\"3\"/>\
             <text x=\"{}\" y=\"{}\">{}</text>\n",
            left + 22.0,
            top + 4.0,
            escape(&series.name)
        ),
    );
}

/// From the least to the most value, evenly or by powers of ten.
struct Axis {
    low: f64,
    high: f64,
    logarithmic: bool,
}

impl Axis {
    fn new(logarithmic: bool, values: impl Iterator<Item = f64>) -> Self {
        let (low, high) = values
            .fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), value| (low.min(value), high.max(value)));
        let mut axis = Self { low: if low.is_finite() { low } else { 0.0 }, high, logarithmic };
        if logarithmic {
            axis.low = axis.low.max(1.0);
        }
        // An axis has a length, whatever there is to be seen on it.
        axis.high = if axis.high > axis.low { axis.high } else { axis.low + 1.0 };
        axis
    }

    /// Where on the axis a value is: 0 at its start, 1 at its end.
    fn place(&self, value: f64) -> f64 {
        let scale = |value: f64| if self.logarithmic { value.max(1.0).log10() } else { value };
        (scale(value) - scale(self.low)) / (scale(self.high) - scale(self.low))
    }

    fn ticks(&self) -> Vec<f64> {
        if !self.logarithmic {
            return (0..=4).map(|part| self.low + (self.high - self.low) * f64::from(part) / 4.0).collect();
        }
        let powers = (0..19).map(|power| 10_f64.powi(power));
        powers.filter(|power| (self.low..=self.high).contains(power)).collect()
    }
}

fn short(value: f64) -> String {
    match value {
        1e6.. => format!("{} M", value / 1e6),
        1e4.. => format!("{:.0} K", value / 1e3),
        _ if value.fract() == 0.0 || value >= 100.0 => format!("{value:.0}"),
        _ => format!("{value:.2}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn curves_end_where_the_axes_end_and_have_names() {
        let mut plot = Plot::new("a<b", "writes", "lines").logarithmic(true, false);
        plot.push(Series { name: "one".into(), points: vec![(1.0, 0.0), (10.0, 0.5), (100.0, 1.0)] });
        let svg = plot.to_svg();
        assert!(svg.contains("points=\"70.0,340.0 390.0,190.0 710.0,40.0 \""), "{svg}");
        assert!(svg.contains("a&lt;b") && svg.contains(">one<") && svg.contains(">100<"), "{svg}");
    }

    #[test]
    fn nothing_and_a_single_point_can_be_drawn() {
        let mut plot = Plot::new("", "", "").logarithmic(true, true);
        assert!(!plot.to_svg().contains("NaN"));
        plot.push(Series { name: String::new(), points: vec![(0.0, 5.0)] });
        assert!(plot.to_svg().contains("points=\"70.0,340.0 \""), "{}", plot.to_svg());
    }

    #[test]
    fn of_many_points_the_highest_stay() {
        let points = (0..1000).map(|x| (f64::from(x), if x == 777 { 9.0 } else { 1.0 })).collect();
        let series = Series { name: String::new(), points }.highest_of(10);
        assert_eq!(series.points.len(), 10);
        assert!(series.points.contains(&(777.0, 9.0)));
    }
}
