//! What client commands show: a bar for people, lines or JSON for programs.

use std::io::{IsTerminal as _, Write as _};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use keyway_client::Progress;

/// A bar on standard error where that is a terminal, and nothing elsewhere.
#[derive(Clone)]
pub(crate) struct Bar(ProgressBar);

impl Bar {
    pub(crate) fn new(what: &str, quiet: bool) -> Self {
        if quiet || !std::io::stderr().is_terminal() {
            return Self(ProgressBar::hidden());
        }
        let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr_with_hz(10));
        let style = "{msg} {wide_bar} {bytes}/{total_bytes} {binary_bytes_per_sec} {eta}";
        if let Ok(style) = ProgressStyle::with_template(style) {
            bar.set_style(style);
        }
        bar.set_message(what.to_owned());
        Self(bar)
    }

    /// What a transfer reports to.
    pub(crate) fn reporter(&self) -> impl Fn(Progress) + Send + Sync + 'static {
        let bar = self.0.clone();
        move |progress| {
            bar.set_length(progress.total);
            bar.set_position(progress.bytes);
        }
    }

    pub(crate) fn finish(&self) {
        self.0.finish_and_clear();
    }
}

/// Prints a line on standard output. A reader that has gone is no failure of ours.
pub(crate) fn line(text: &str) {
    let _ = writeln!(std::io::stdout(), "{text}");
}

/// Bytes per second in the unit that reads best.
pub(crate) fn rate(bytes: u64, elapsed: Duration) -> String {
    let per_second = bytes as f64 / elapsed.as_secs_f64().max(1e-9);
    if per_second >= 1e9 {
        format!("{:.2} GB/s", per_second / 1e9)
    } else {
        format!("{:.1} MB/s", per_second / 1e6)
    }
}

/// A size in binary units.
pub(crate) fn size(bytes: u64) -> String {
    indicatif::BinaryBytes(bytes).to_string()
}
