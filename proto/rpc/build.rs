//! Compiles the schema without `protoc`: protox parses it in Rust.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo::rerun-if-changed=node.proto");
    let schema = protox::compile(["node.proto"], ["."])?;
    tonic_prost_build::configure().bytes(".").compile_fds(schema)?;
    Ok(())
}
