//! The Keyway client for Python: the native half of the package `keyway`.
//!
//! | module | what |
//! |---|---|
//! | [`client`] | every operation of the client |
//! | [`operation`] | waiting with the interpreter released; awaiting without a thread per call |
//! | [`storage`] | the border: memory that Python objects show, lent to transfers |
//! | [`buffer`] | memory that we show to Python |
//! | [`dlpack`] | the layout of DLPack |
//! | [`report`], [`raise`] | outcomes and failures |
//!
//! Bytes never pass through Python: a transfer writes where the object's memory lies. Cost of a
//! call beside the client's: one buffer view, one lend, two boxes, and the interpreter released
//! once.

mod buffer;
mod client;
mod dlpack;
mod operation;
mod raise;
mod report;
mod storage;

/// `keyway._keyway`.
#[pyo3::pymodule]
mod _keyway {
    #[pymodule_export]
    use crate::buffer::Buffer;
    #[pymodule_export]
    use crate::client::{Client, Entries};
    #[pymodule_export]
    use crate::operation::Operation;
    #[pymodule_export]
    use crate::report::{ListedObject, ObjectInfoView, Report};
}
