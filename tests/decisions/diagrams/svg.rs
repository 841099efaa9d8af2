//! Diagrams as SVG. Text and axes have the colour of the surrounding text; other colours are legible on light and on
//! dark backgrounds. Denied requests differ by shape, too.

use std::fmt::Write;
use std::time::Duration;

use super::run::{END, Run};

const WIDTH: u64 = 720;
const LEFT: u64 = 90;
const RIGHT: u64 = 700;
/// The top and bottom of the plot.
const TOP: u64 = 34;
const BOTTOM: u64 = 114;
/// The lane of requests.
const LANE: u64 = 138;
const AXIS: u64 = 158;
const HEIGHT: u64 = 180;

const ALLOWED: &str = "#2e9e5b";
const DENIED: &str = "#e05252";
const CURVE: &str = "#4a90d9";

/// The plot above the requests.
pub(super) enum Curve {
    Remaining,
    /// The level of a leaky bucket.
    Level,
    /// The instants at which delayed requests proceed.
    Departures,
}

pub(super) struct Diagram {
    pub(super) name: &'static str,
    pub(super) description: &'static str,
    pub(super) curve: Curve,
    /// The length of aligned windows, whose edges are drawn.
    pub(super) window: Option<Duration>,
}

impl Diagram {
    pub(super) fn draw(&self, run: &Run) -> String {
        let mut svg = String::new();
        let label = self.label(run);
        line(
            &mut svg,
            format_args!(
                r#"<svg viewBox="0 0 {WIDTH} {HEIGHT}" width="100%" role="img" aria-label="{label}" font-size="12" fill="none" stroke-width="1.5">"#
            ),
        );
        text(&mut svg, LEFT, 18, "start", &format!("{}: {}", self.name, self.description));
        self.axis(&mut svg);
        match self.curve {
            Curve::Departures => departures(&mut svg, run),
            Curve::Remaining => curve(&mut svg, run, "remaining", |remaining| remaining),
            Curve::Level => curve(&mut svg, run, "level", |remaining| run.capacity - remaining),
        }
        text(&mut svg, LEFT - 10, LANE + 4, "end", "requests");
        requests(&mut svg, run);
        line(&mut svg, format_args!("</svg>"));
        svg
    }

    /// The alternative text.
    fn label(&self, run: &Run) -> String {
        let seconds = |at: u64| format!("{} s", at as f64 / 1_000.0);
        let denied: Vec<_> =
            run.requests.iter().filter(|request| !request.is_allowed).map(|it| seconds(it.at)).collect();
        let delayed = run.requests.iter().filter(|request| request.delay > 0).count();
        let mut label = format!("Diagram. {}: {}. ", self.name, self.description);
        let all = run.requests.len();
        write!(label, "Of {all} requests in {} s, {} are allowed", END / 1_000, all - denied.len()).unwrap();
        if delayed > 0 {
            write!(label, ", {delayed} of them after a delay").unwrap();
        }
        match denied.is_empty() {
            true => label.push('.'),
            false => write!(label, ", and those at {} are denied.", denied.join(", ")).unwrap(),
        }
        label
    }

    fn axis(&self, svg: &mut String) {
        for second in (0..=END / 1_000).step_by(2) {
            let x = x(second * 1_000);
            line(svg, format_args!(r#"<path d="M{x} {AXIS}v5" stroke="currentColor" stroke-opacity="0.6"/>"#));
            text(svg, x, AXIS + 18, "middle", &format!("{second} s"));
        }
        line(svg, format_args!(r#"<path d="M{LEFT} {AXIS}H{RIGHT}" stroke="currentColor" stroke-opacity="0.6"/>"#));
        if let Some(window) = self.window {
            for edge in (0..=END).step_by(window.as_millis() as usize) {
                let x = x(edge);
                line(
                    svg,
                    format_args!(
                        r#"<path d="M{x} {TOP}V{AXIS}" stroke="currentColor" stroke-opacity="0.5" stroke-dasharray="3 4"/>"#
                    ),
                );
            }
        }
    }
}

/// Draws the tokens over time as steps.
fn curve(svg: &mut String, run: &Run, name: &str, value: impl Fn(u64) -> u64) {
    let y = |tokens: u64| BOTTOM - tokens * (BOTTOM - TOP) / run.capacity;
    for tokens in [0, run.capacity] {
        let y = y(tokens);
        text(svg, LEFT - 10, y + 4, "end", &tokens.to_string());
        line(svg, format_args!(r#"<path d="M{LEFT} {y}H{RIGHT}" stroke="currentColor" stroke-opacity="0.2"/>"#));
    }
    text(svg, LEFT - 10, (TOP + BOTTOM) / 2 + 4, "end", name);
    let mut path = format!("M{LEFT} {}", y(value(run.remaining[0].1)));
    for pair in run.remaining.windows(2).filter(|pair| pair[0].1 != pair[1].1) {
        write!(path, "H{}V{}", x(pair[1].0), y(value(pair[1].1))).unwrap();
    }
    write!(path, "H{RIGHT}").unwrap();
    line(svg, format_args!(r#"<path d="{path}V{BOTTOM}H{LEFT}Z" fill="{CURVE}" fill-opacity="0.2"/>"#));
    line(svg, format_args!(r#"<path d="{path}" stroke="{CURVE}"/>"#));
}

/// Connects each request with the instant at which it proceeds.
fn departures(svg: &mut String, run: &Run) {
    let lane = (TOP + BOTTOM) / 2;
    text(svg, LEFT - 10, lane + 4, "end", "proceed");
    line(svg, format_args!(r#"<path d="M{LEFT} {lane}H{RIGHT}" stroke="currentColor" stroke-opacity="0.2"/>"#));
    for request in run.requests.iter().filter(|request| request.is_allowed && request.at + request.delay <= END) {
        let (from, to) = (x(request.at), x(request.at + request.delay));
        line(svg, format_args!(r#"<path d="M{from} {LANE}L{to} {lane}" stroke="{CURVE}"/>"#));
        line(svg, format_args!(r#"<circle cx="{to}" cy="{lane}" r="4" fill="{CURVE}"/>"#));
    }
}

fn requests(svg: &mut String, run: &Run) {
    for request in &run.requests {
        let x = x(request.at);
        if request.is_allowed {
            line(svg, format_args!(r#"<circle cx="{x}" cy="{LANE}" r="4" fill="{ALLOWED}"/>"#));
        } else {
            line(
                svg,
                format_args!(r#"<path d="M{} {}l8 8m0 -8l-8 8" stroke="{DENIED}" stroke-width="2"/>"#, x - 4, LANE - 4),
            );
        }
    }
}

fn x(at: u64) -> u64 {
    LEFT + at * (RIGHT - LEFT) / END
}

fn text(svg: &mut String, x: u64, y: u64, anchor: &str, text: &str) {
    line(svg, format_args!(r#"<text x="{x}" y="{y}" text-anchor="{anchor}" fill="currentColor">{text}</text>"#));
}

fn line(svg: &mut String, line: std::fmt::Arguments<'_>) {
    writeln!(svg, "{line}").unwrap();
}
