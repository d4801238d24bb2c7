//! Goal: S3's semantics hold for any sequence of operations, not only for those that somebody
//! thought of.
//!
//! Method: random operations go to a real server over HTTP and to a naive model in memory;
//! every answer is compared with what the model says. A failing sequence is shrunk; the seed is
//! printed and replays it (`KEYWAY_TEST_SEED`). `KEYWAY_MODEL_CASES` sets how many sequences.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a test may give up, and speak")]

#[path = "model/drive.rs"]
mod drive;
#[path = "model/operation.rs"]
mod operation;
#[path = "model/reference.rs"]
mod reference;
#[path = "model/versions.rs"]
mod versions;

use std::cell::{Cell, RefCell};

use keyway_integration_tests::seed::{knob, seed};
use keyway_integration_tests::{S3, Server};
use proptest::collection::vec;
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};

/// Operations in one sequence.
const LENGTH: std::ops::Range<usize> = 1..60;

#[test]
fn any_sequence_of_operations_does_what_the_model_says() {
    let server = Server::start().expect("the server starts");
    let s3 = RefCell::new(S3::of(&server));
    let sequences = Cell::new(0_u32);

    let cases = u32::try_from(knob("KEYWAY_MODEL_CASES", 120)).expect("fewer than 2^32 cases");
    let config =
        Config { cases, failure_persistence: None, max_shrink_iters: 400, ..Config::default() };
    let mut entropy = [0; 32];
    entropy[..8].copy_from_slice(&seed("model").to_le_bytes());
    let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &entropy);
    let outcome = TestRunner::new_with_rng(config, rng).run(
        &vec(operation::any_operation(), LENGTH),
        |operations| {
            // A bucket for each sequence: what an earlier one left cannot disturb it.
            let bucket = format!("model-{}", sequences.replace(sequences.get() + 1));
            drive::run(&mut s3.borrow_mut(), &bucket, &operations)
        },
    );
    if let Err(failure) = outcome {
        panic!("{failure}\n{}", server.log());
    }
}
