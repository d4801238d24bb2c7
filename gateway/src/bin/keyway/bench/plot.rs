//! Throughput, and what it costs, over the size of objects: two panels of one SVG, a line for
//! each way of asking, on logarithmic scales.

use svg::node::element::{Circle, Group, Line, Polyline, Rectangle, Text};
use svg::{Document, Node};

use super::cell::Operation;
use super::sizes;
use super::tally::Measured;

const WIDTH: f64 = 960.0;
const PANEL_HEIGHT: f64 = 480.0;
/// Around a panel's axes: left, top, right, bottom.
const MARGIN: (f64, f64, f64, f64) = (84.0, 48.0, 24.0, 64.0);
/// Apart by hue and by lightness, so that they differ in grey, too (Okabe and Ito's palette).
const COLOURS: [&str; 7] =
    ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#000000"];
/// From one name of a line to the next, and the room for the longest.
const NAME_HEIGHT: f64 = 18.0;
const NAME_WIDTH: f64 = 320.0;

/// A line: what it is called, and its points by size.
struct Series {
    name: String,
    points: Vec<(f64, f64)>,
}

/// The drawing, as text.
///
/// # Errors
/// When there is nothing to draw: a line needs two sizes.
pub(super) fn svg(results: &[Measured]) -> anyhow::Result<String> {
    let throughput = lines(results, |result| Some(result.gib_per_second()));
    let cost = lines(results, Measured::cpu_per_gib);
    anyhow::ensure!(
        throughput.iter().any(|line| line.points.len() > 1),
        "nothing to draw: a line needs two sizes"
    );
    let whose = if results.iter().all(|result| result.server_cpu.is_some()) {
        "client and server"
    } else {
        "client"
    };
    let height = 2.0 * PANEL_HEIGHT;
    let paper = Rectangle::new().set("width", WIDTH).set("height", height).set("fill", "white");
    // Names stand where lines seldom go: throughput rises with the size, and its cost falls.
    let (left, right) = (MARGIN.0 + 12.0, WIDTH - MARGIN.2 - NAME_WIDTH);
    let lower = panel(&cost, &format!("CPU time, {whose}"), "seconds per GiB", right)
        .set("transform", format!("translate(0 {PANEL_HEIGHT})"));
    let document = Document::new()
        .set("viewBox", (0, 0, WIDTH, height))
        .set("font-family", "sans-serif")
        .set("font-size", 13)
        .add(paper)
        .add(panel(&throughput, "Throughput", "GiB/s", left))
        .add(lower);
    Ok(document.to_string())
}

/// The lines in the order of their first points; what has no positive value has no place on a
/// logarithmic scale.
fn lines(results: &[Measured], value: impl Fn(&Measured) -> Option<f64>) -> Vec<Series> {
    let mut lines: Vec<Series> = Vec::new();
    for result in results.iter().filter(|result| result.cell.operation != Operation::List) {
        let Some(value) = value(result).filter(|value| *value > 0.0) else { continue };
        let (name, point) = (result.series(), (result.cell.size as f64, value));
        match lines.iter_mut().find(|line| line.name == name) {
            Some(line) => line.points.push(point),
            None => lines.push(Series { name, points: vec![point] }),
        }
    }
    for line in &mut lines {
        line.points.sort_by(|one, other| one.0.total_cmp(&other.0));
    }
    lines
}

/// A logarithmic axis between two values, along pixels.
struct Axis {
    values: (f64, f64),
    pixels: (f64, f64),
}

impl Axis {
    fn at(&self, value: f64) -> f64 {
        let (low, high) = (self.values.0.ln(), self.values.1.ln());
        let share = (value.ln() - low) / (high - low);
        self.pixels.0 + share * (self.pixels.1 - self.pixels.0)
    }
}

fn panel(lines: &[Series], caption: &str, unit: &str, names: f64) -> Group {
    let mut group = Group::new();
    let (left, top, right, bottom) = MARGIN;
    let (x_end, y_end) = (WIDTH - right, PANEL_HEIGHT - bottom);
    group.append(text(caption, (left, top - 18.0), "start").set("font-size", 18));
    let all = || lines.iter().flat_map(|line| &line.points);
    let bounds = |of: fn(&(f64, f64)) -> f64| {
        all().map(of).fold((f64::MAX, f64::MIN), |(low, high), v| (low.min(v), high.max(v)))
    };
    if all().next().is_none() {
        return group;
    }
    let (sizes, values) = (bounds(|point| point.0), bounds(|point| point.1));
    // Whole decades, at least one.
    let decades = (values.0.log10().floor() as i32, values.1.log10().ceil() as i32);
    let decades = (decades.0, decades.1.max(decades.0 + 1));
    let x = Axis { values: (sizes.0, sizes.1.max(sizes.0 * 2.0)), pixels: (left, x_end) };
    let range = (10f64.powi(decades.0), 10f64.powi(decades.1));
    let y = Axis { values: range, pixels: (y_end, top) };

    for decade in decades.0..=decades.1 {
        let value = 10f64.powi(decade);
        let height = y.at(value);
        let digits = usize::try_from(-decade).unwrap_or(0);
        group.append(grid((left, height), (x_end, height)));
        group.append(text(&format!("{value:.digits$}"), (left - 8.0, height + 4.0), "end"));
    }
    let mut marks: Vec<u64> = all().map(|point| point.0 as u64).collect();
    marks.sort_unstable();
    marks.dedup();
    for size in marks {
        let place = x.at(size as f64);
        group.append(grid((place, top), (place, y_end)));
        group.append(text(&sizes::shown(size), (place, y_end + 20.0), "middle"));
    }
    group.append(text("size of an object", ((left + x_end) / 2.0, y_end + 44.0), "middle"));
    let middle = (top + y_end) / 2.0;
    let turned = format!("rotate(-90 22 {middle})");
    group.append(text(unit, (22.0, middle), "middle").set("transform", turned));

    for (index, line) in lines.iter().enumerate() {
        let colour = COLOURS[index % COLOURS.len()];
        draw(&mut group, line, colour, &x, &y);
        let beside = (names, top + 16.0 + NAME_HEIGHT * index as f64);
        group.append(
            stroke((beside.0, beside.1 - 4.0), (beside.0 + 20.0, beside.1 - 4.0), colour)
                .set("stroke-width", 2),
        );
        group.append(text(&line.name, (beside.0 + 28.0, beside.1), "start"));
    }
    group
}

fn draw(group: &mut Group, line: &Series, colour: &str, x: &Axis, y: &Axis) {
    let points: Vec<(f64, f64)> =
        line.points.iter().map(|(size, value)| (x.at(*size), y.at(*value))).collect();
    let path: Vec<String> = points.iter().map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
    let path = Polyline::new().set("points", path.join(" ")).set("fill", "none");
    group.append(path.set("stroke", colour).set("stroke-width", 2));
    for (x, y) in points {
        let (x, y) = (format!("{x:.1}"), format!("{y:.1}"));
        let mark = Circle::new().set("cx", x).set("cy", y).set("r", 3);
        group.append(mark.set("fill", colour));
    }
}

fn grid(from: (f64, f64), to: (f64, f64)) -> Line {
    stroke(from, to, "#dddddd")
}

fn stroke(from: (f64, f64), to: (f64, f64), colour: &str) -> Line {
    let line = Line::new().set("x1", from.0).set("y1", from.1);
    line.set("x2", to.0).set("y2", to.1).set("stroke", colour)
}

/// Words at a place, which they begin at, end at, or lie around.
fn text(words: &str, place: (f64, f64), anchor: &str) -> Text {
    Text::new(words).set("x", place.0).set("y", place.1).set("text-anchor", anchor)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_axis_is_logarithmic_between_its_ends() {
        let axis = Axis { values: (1.0, 100.0), pixels: (400.0, 0.0) };
        for (value, pixel) in [(1.0, 400.0), (10.0, 200.0), (100.0, 0.0)] {
            assert!((axis.at(value) - pixel).abs() < 1e-9, "{value}");
        }
    }

    /// Whatever a service is called, the drawing stays one.
    #[test]
    fn names_are_escaped() {
        let name = "<&\"'>".to_owned();
        let line = Series { name, points: vec![(4096.0, 0.5), (16384.0, 2.0)] };
        let drawn = panel(&[line], "a & b", "GiB/s", 0.0).to_string();
        assert!(!drawn.contains("<&") && drawn.contains("&lt;&amp;"), "{drawn}");
        assert_eq!(drawn.matches("<circle").count(), 2, "{drawn}");
    }
}
