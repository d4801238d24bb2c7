//! Host memory between bodies and GPUs.

/// What a client says about it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StagingConfig {
    pub(crate) bytes: usize,
}

impl Default for StagingConfig {
    fn default() -> Self {
        Self { bytes: 128 << 20 }
    }
}

/// A client's staging memory.
#[derive(Debug)]
pub struct Staging {
    config: StagingConfig,
}

impl Staging {
    pub(crate) fn new(config: StagingConfig) -> Self {
        Self { config }
    }
}
