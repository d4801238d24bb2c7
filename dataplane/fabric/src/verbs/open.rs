//! The ports of this machine that are wanted.

use std::sync::Arc;

use keyway_sys::NativeError;
use keyway_sys::verbs::Verbs;

use super::{Device, LinkShape, Port, VerbsError};

/// Ports that were opened, and those that were not.
#[derive(Debug, Default)]
pub struct Opened {
    /// Whether the machine has any RDMA device, wanted or not.
    pub has_devices: bool,
    /// Those that can be used, in the library's order.
    pub ports: Vec<Port>,
    /// Those that were wanted and cannot be used: `mlx5_0/1`, and why.
    pub left_out: Vec<(String, VerbsError)>,
}

/// Opens ports. `wanted` names them, as `mlx5_0` (all its ports) or `mlx5_0/1`; when it is
/// empty, all are. Blocks for system calls.
///
/// # Errors
/// [`NativeError`] when there is no library, or it cannot list devices. A port that cannot be
/// opened is no error: it is told apart.
pub fn open_ports(wanted: &[String]) -> Result<Opened, NativeError> {
    open_each(wanted, Port::open)
}

/// The same, each with room for so many links of a shape at a time where its device has it.
///
/// # Errors
/// As [`open_ports`].
pub fn open_ports_for(
    wanted: &[String],
    links: u32,
    shape: LinkShape,
) -> Result<Opened, NativeError> {
    open_each(wanted, |device, number| Port::open_for(device, number, links, shape))
}

fn open_each(
    wanted: &[String],
    open: impl Fn(&Arc<Device>, u8) -> Result<Port, VerbsError>,
) -> Result<Opened, NativeError> {
    let verbs = Arc::new(Verbs::load()?);
    let mut opened = Opened::default();
    for name in verbs.device_names()? {
        opened.has_devices = true;
        let is_wanted = |port: Option<u8>| wanted.is_empty() || names(wanted, &name, port);
        if !is_wanted(None) {
            continue;
        }
        let ports = match Device::open(&verbs, &name) {
            Ok(device) => device.ports(),
            Err(error) => {
                opened.left_out.push((name, error));
                continue;
            }
        };
        for number in (1..=ports).filter(|number| is_wanted(Some(*number))) {
            // A context of its own: a port's thread takes its device's events.
            match Device::open(&verbs, &name).and_then(|device| open(&device, number)) {
                Ok(port) => opened.ports.push(port),
                Err(error) => opened.left_out.push((format!("{name}/{number}"), error)),
            }
        }
    }
    Ok(opened)
}

/// Whether a device, or a port of it, is named. A device is when one of its ports is.
fn names(wanted: &[String], device: &str, port: Option<u8>) -> bool {
    wanted.iter().any(|want| match (want.split_once('/'), port) {
        (None, _) => want == device,
        (Some((of, _)), None) => of == device,
        (Some((of, number)), Some(port)) => of == device && number.parse() == Ok(port),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_and_ports_are_named() {
        let wanted = ["mlx5_0/2".to_owned(), "rxe1".to_owned()];
        for (device, port, expected) in [
            ("mlx5_0", None, true),
            ("mlx5_0", Some(1), false),
            ("mlx5_0", Some(2), true),
            ("rxe1", Some(1), true),
            ("rxe", None, false),
            ("mlx5_1", Some(2), false),
        ] {
            assert_eq!(names(&wanted, device, port), expected, "{device} {port:?}");
        }
    }
}
