//! An operation that Python waits for, or awaits.
//!
//! Waiting runs the operation on the caller's thread with the interpreter released, and looks
//! for signals a few times a second, so that Ctrl-C ends it. Awaiting spawns it; what has
//! finished is handed to its event loop by one thread, all that is there at a time, so that no
//! thread of the runtime ever waits for the interpreter.
//!
//! Dropping an operation, or cancelling what awaits it, cancels the transfer.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};
use std::time::Duration;

use keyway_bindings::{Failure, PerProcess, runtime};
use pyo3::exceptions::PyRuntimeError;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use tokio::task::{AbortHandle, JoinHandle};

use crate::raise::raise;
use crate::storage::Storage;

/// How long a wait goes without a look at signals.
const PATIENCE: Duration = Duration::from_millis(100);

/// Makes the Python object of what came out.
pub(crate) type Finish = Box<dyn FnOnce(Python<'_>) -> PyResult<Py<PyAny>> + Send>;
type Work = Pin<Box<dyn Future<Output = Result<Finish, Failure>> + Send>>;

/// Something under way, or about to be.
#[pyclass(frozen, module = "keyway._keyway")]
pub(crate) struct Operation {
    state: Mutex<State>,
}

enum State {
    Waiting(Work, Keep),
    Running(Task, Keep),
    Taken,
}

/// The memory that must outlive an operation.
type Keep = Vec<Arc<Storage>>;

/// A task that ends with what holds it.
struct Task(JoinHandle<Result<Finish, Failure>>);

impl Drop for Task {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Operation {
    pub(crate) fn new<T: Send + 'static>(
        keep: Keep,
        work: impl Future<Output = Result<T, Failure>> + Send + 'static,
        finish: impl FnOnce(Python<'_>, T) -> PyResult<Py<PyAny>> + Send + 'static,
    ) -> Self {
        let work = Box::pin(async move {
            let value = work.await?;
            Ok::<Finish, Failure>(Box::new(move |py: Python<'_>| finish(py, value)))
        });
        Self { state: Mutex::new(State::Waiting(work, keep)) }
    }

    fn take(&self) -> State {
        std::mem::replace(&mut self.state(), State::Taken)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[pymethods]
impl Operation {
    /// Begins, without waiting.
    fn start(slf: Bound<'_, Self>) -> PyResult<Bound<'_, Self>> {
        let State::Waiting(work, keep) = slf.get().take() else { return Err(begun()) };
        let task = runtime().map_err(raise)?.spawn(work);
        *slf.get().state() = State::Running(Task(task), keep);
        Ok(slf)
    }

    /// Waits for it.
    fn wait(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        let (finish, _keep) = match self.take() {
            State::Waiting(mut work, keep) => (wait(py, &mut work)?, keep),
            State::Running(mut task, keep) => match wait(py, &mut task.0)? {
                Ok(finish) => (finish, keep),
                Err(error) => return Err(PyRuntimeError::new_err(error.to_string())),
            },
            State::Taken => return Err(begun()),
        };
        finish.map_err(raise)?(py)
    }

    /// Begins in the event loop that runs, and gives the iterator of its future.
    fn __await__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let event_loop =
            py.import(intern!(py, "asyncio"))?.call_method0(intern!(py, "get_running_loop"))?;
        let future = event_loop.call_method0(intern!(py, "create_future"))?;
        let State::Waiting(work, keep) = self.take() else { return Err(begun()) };
        let completions = completions()?;
        let (event_loop, awaited) = (event_loop.unbind(), future.clone().unbind());
        let task = runtime().map_err(raise)?.spawn(async move {
            let outcome = work.await;
            // Nobody receives it when the process is about to exit.
            let _ = completions.send(Completion { event_loop, future: awaited, outcome, keep });
        });
        let cancel = Bound::new(py, Cancel(task.abort_handle()))?;
        future.call_method1(intern!(py, "add_done_callback"), (cancel,))?;
        future.call_method0(intern!(py, "__await__"))
    }
}

fn begun() -> PyErr {
    PyRuntimeError::new_err("the operation has begun before")
}

/// Runs a future on this thread, interpreter released, until it is done or a signal says no.
fn wait<F: Future + Unpin + Send>(py: Python<'_>, mut work: F) -> PyResult<F::Output>
where
    F::Output: Send,
{
    let runtime = runtime().map_err(raise)?;
    loop {
        let turn = py
            .detach(|| runtime.block_on(async { tokio::time::timeout(PATIENCE, &mut work).await }));
        match turn {
            Ok(output) => return Ok(output),
            Err(_elapsed) => py.check_signals()?,
        }
    }
}

/// Cancels a transfer whose awaiting was cancelled. Called when the future is done, however.
#[pyclass(frozen, module = "keyway._keyway")]
struct Cancel(AbortHandle);

#[pymethods]
impl Cancel {
    fn __call__(&self, _future: &Bound<'_, PyAny>) {
        self.0.abort();
    }
}

/// What has finished, for its event loop.
struct Completion {
    event_loop: Py<PyAny>,
    future: Py<PyAny>,
    outcome: Result<Finish, Failure>,
    /// Let go with the interpreter held: its owners are Python's.
    keep: Keep,
}

/// The way to the thread that tells event loops.
fn completions() -> PyResult<mpsc::Sender<Completion>> {
    static TELLER: PerProcess<mpsc::Sender<Completion>> = PerProcess::new();
    let teller = TELLER.get(|| {
        let (sender, finished) = mpsc::channel();
        std::thread::Builder::new()
            .name("keyway-asyncio".to_owned())
            .spawn(move || tell(&finished))?;
        Ok::<_, std::io::Error>(sender)
    });
    Ok((**teller?).clone())
}

fn tell(finished: &mpsc::Receiver<Completion>) {
    while let Ok(first) = finished.recv() {
        // `None` when the interpreter is ending: nobody awaits any more.
        let told = Python::try_attach(|py| {
            let mut told = Vec::new();
            let mut of: Option<Py<PyAny>> = None;
            for done in std::iter::once(first).chain(finished.try_iter()) {
                let Completion { event_loop, future, outcome, keep } = done;
                if of.as_ref().is_some_and(|of| !of.is(&event_loop)) {
                    hand_over(py, of.take(), std::mem::take(&mut told));
                }
                of = Some(event_loop);
                let outcome = outcome.map_err(raise).and_then(|finish| finish(py));
                told.push(match outcome {
                    Ok(value) => (future, value, true),
                    Err(error) => (future, error.into_value(py).into_any(), false),
                });
                drop(keep);
            }
            hand_over(py, of, told);
        });
        if told.is_none() {
            return;
        }
    }
}

/// Futures with their values, and whether these are no exceptions.
type Told = Vec<(Py<PyAny>, Py<PyAny>, bool)>;

fn hand_over(py: Python<'_>, event_loop: Option<Py<PyAny>>, told: Told) {
    static SETTLE: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    let settle = SETTLE
        .get_or_try_init(py, || Ok::<_, PyErr>(wrap_pyfunction!(settle, py)?.into_any().unbind()));
    let Ok(settle) = settle else { return };
    if let Some(event_loop) = event_loop {
        // A loop that was closed meanwhile has nobody waiting.
        let _ = event_loop.call_method1(py, intern!(py, "call_soon_threadsafe"), (settle, told));
    }
}

/// Settles futures, in their loop.
#[pyfunction]
fn settle(py: Python<'_>, told: Told) -> PyResult<()> {
    for (future, value, is_result) in told {
        let future = future.bind(py);
        if future.call_method0(intern!(py, "done"))?.is_truthy()? {
            continue;
        }
        let how = if is_result { intern!(py, "set_result") } else { intern!(py, "set_exception") };
        future.call_method1(how, (value,))?;
    }
    Ok(())
}
