//! Goal: `keyway bench` measures what it says, by one process and by several, verifies every
//! byte when the clock has stopped, and draws what it found.
//!
//! Method: the binary against a real server, its JSON held against what it was told to do, and
//! against objects that are not what it believes to have stored.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a test may give up, and speak")]

use std::process::{Command, Output};

use keyway_integration_tests::server::binary;
use keyway_integration_tests::{S3, Server};
use serde_json::Value;

fn bench(server: &Server, arguments: &[&str]) -> Output {
    let credentials = server.credentials();
    Command::new(binary().unwrap())
        .args(["bench", "--endpoint", server.url(), "--bucket", "bench"])
        .args(["--seconds", "0.3", "--warm-up-seconds", "0.1", "--json"])
        .args(arguments)
        .env("KEYWAY_ACCESS_KEY", &credentials.access_key)
        .env("KEYWAY_SECRET_KEY", credentials.secret_key.as_str())
        .output()
        .unwrap()
}

fn cells(output: &Output) -> Vec<Value> {
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}: {errors}", output.status);
    let text = String::from_utf8_lossy(&output.stdout);
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn number(cell: &Value, name: &str) -> f64 {
    cell[name].as_f64().unwrap_or_else(|| panic!("no {name} in {cell}"))
}

#[test]
fn several_processes_are_one_measurement() {
    let server = Server::start().unwrap();
    let arguments = [
        "--processes=3",
        "--concurrency=2",
        "--sizes=64KiB,1MiB",
        "--memory=shared",
        "--path=ipc-host",
    ];
    let cells = cells(&bench(&server, &arguments));
    assert_eq!(cells.len(), 4, "{cells:?}");
    for cell in &cells {
        assert_eq!((&cell["processes"], &cell["concurrency"]), (&3.into(), &2.into()));
        assert_eq!((&cell["path"], &cell["strength"]), (&"ipc-host".into(), &"ipc".into()));
        let (size, ops, bytes) = (number(cell, "size"), number(cell, "ops"), number(cell, "bytes"));
        assert!(ops > 0.0 && bytes == ops * size, "{cell}");
        assert_eq!(number(cell, "verified_bytes"), bytes, "{cell}");
        // What was measured lies in the span, which begins once for all.
        let seconds = number(cell, "seconds");
        assert!((0.3..10.0).contains(&seconds), "{cell}");
        assert!(number(cell, "p50_us") <= number(cell, "p99_us"), "{cell}");
        assert!(number(cell, "p99_us") <= seconds * 1e6 * 1.02, "{cell}");
        // Six workers cannot have waited longer than all of them together.
        assert!(number(cell, "mean_us") * ops <= seconds * 1e6 * 6.0, "{cell}");
        let rate = bytes / (1 << 20) as f64 / seconds;
        assert!((number(cell, "mib_per_second") - rate).abs() < rate * 1e-6, "{cell}");
        assert!(number(cell, "client_cpu_seconds_per_gib") > 0.0, "{cell}");
        // All that was stored for GETs, and the last object of each worker; of PUTs every key.
        let compared = number(cell, "compared_bytes") / size;
        if cell["operation"] == "get" {
            let objects = 256.0;
            assert!((objects..=objects + 6.0).contains(&compared), "{cell}");
        } else {
            assert!((1.0..=48.0).contains(&compared), "{cell}");
        }
    }
}

/// An object of the right size and other bytes: the service and its client agree on it, who
/// stored it does not.
#[test]
fn one_wrong_object_fails_the_run() {
    let server = Server::start().unwrap();
    let mut s3 = S3::of(&server);
    assert_eq!(s3.create_bucket("bench").unwrap().status, 200);
    let stored = s3.put("bench", "get/4096/17", &[7; 4096]).unwrap();
    assert_eq!(stored.status, 200);
    for processes in ["--processes=1", "--processes=2"] {
        let arguments = ["--operations=get", "--sizes=4KiB", "--concurrency=1", processes];
        let output = bench(&server, &arguments);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{errors}");
        let told = errors.contains("get/4096/17 holds other bytes")
            || errors.contains("object 17 has the CRC64NVME");
        assert!(told, "{errors}");
    }
}

#[test]
fn a_sweep_is_drawn() {
    let server = Server::start().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let plot = folder.path().join("sweep.svg");
    let plot_argument = format!("--plot={}", plot.display());
    let arguments = [
        "--sweep=4KiB..100KiB",
        "--paths=http,ipc-host",
        "--memory=shared",
        "--server-pid",
        &server.pid().unwrap().to_string(),
        &plot_argument,
    ]
    .map(str::to_owned);
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let cells = cells(&bench(&server, &arguments));
    let found: Vec<_> = cells
        .iter()
        .map(|cell| (cell["size"].as_u64().unwrap(), cell["path"].as_str().unwrap()))
        .collect();
    let expected: Vec<_> = [4096, 16384, 65536, 102_400]
        .into_iter()
        .flat_map(|size| [(size, "http"), (size, "ipc-host")])
        .collect();
    assert_eq!(found, expected);
    let svg = std::fs::read_to_string(&plot).unwrap();
    assert!(svg.starts_with("<svg"), "{svg}");
    for text in ["keyway http", "keyway ipc-host", "GiB/s", "64 KiB", "client and server"] {
        assert!(svg.contains(text), "{text}");
    }
    // A line for each path in each panel.
    assert!(svg.matches("<polyline").count() >= 4, "{svg}");
    let table = std::fs::read_to_string(plot.with_extension("md")).unwrap();
    assert_eq!(table.lines().count(), 2 + expected.len(), "{table}");
    assert!(
        table.contains("| keyway ipc-host, GET, 8 in flight | 100 KiB | ipc-host |"),
        "{table}"
    );
}

#[test]
fn what_cannot_be_measured_is_refused() {
    let server = Server::start().unwrap();
    for (arguments, code, told) in [
        (&["--memory=host,shared", "--processes=1"][..], 1, "each uses one"),
        (&["--sweep=64KiB..4KiB"][..], 2, "not less than"),
        (&["--sweep=4KiB..8KiB", "--sizes=4KiB"][..], 2, "cannot be used with"),
        (&["--paths=http", "--path=http"][..], 2, "cannot be used with"),
        (&["--processes=0"][..], 2, "0"),
        (&["--memory=gpu:99", "--operations=get", "--sizes=4KiB"][..], 1, "GPU"),
        (&["--sizes=4KiB", "--operations=get", "--path=ipc-host"][..], 1, "ipc-host"),
    ] {
        let output = bench(&server, arguments);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {errors}");
        assert!(errors.contains(told), "{arguments:?}: {errors}");
    }
}
