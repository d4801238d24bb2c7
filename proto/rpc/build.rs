//! Compiles the schema without `protoc`: protox parses it in Rust.

/// Messages whose `Debug` is written by hand, in `lib.rs`.
const SECRET: [&str; 7] = [
    "Window",
    "TransferRequest",
    "SealingKeyReply",
    "GetRequest",
    "PutPlan",
    "DirectGet",
    "DirectGather",
];

fn main() -> Result<(), Box<dyn std::error::Error>> {
    for file in ["node", "transfer", "session", "direct"] {
        println!("cargo::rerun-if-changed={file}.proto");
    }
    let schema = protox::compile(["node.proto"], ["."])?;
    tonic_prost_build::configure()
        .bytes(".")
        // Whoever holds what these carry can reach a client's memory, or read an encrypted object:
        // no `Debug` that shows it.
        .skip_debug(SECRET.map(|name| format!(".keyway.node.v1.{name}")))
        .compile_fds(schema)?;
    Ok(())
}
