//! One value per process, made anew after a fork.
//!
//! Threads, connections and GPUs belong to the process that made them. A forked child finds its
//! parent's value, leaves it alone, neither used nor dropped, and makes its own. Without a lock:
//! a child may have been forked while another thread held one.

use std::ops::Deref;
use std::sync::Arc;

use arc_swap::ArcSwapOption;

/// A value that a process makes when it first needs it.
pub struct PerProcess<T> {
    current: ArcSwapOption<Made<T>>,
}

/// The value of one process.
pub struct Made<T> {
    process: u32,
    value: T,
}

impl<T> PerProcess<T> {
    /// None yet.
    pub const fn new() -> Self {
        Self { current: ArcSwapOption::const_empty() }
    }

    /// This process's value, made where there is none. Of several threads that make one at a
    /// time, one prevails.
    ///
    /// # Errors
    /// When it cannot be made.
    pub fn get<E>(&self, make: impl FnOnce() -> Result<T, E>) -> Result<Arc<Made<T>>, E> {
        let process = std::process::id();
        let current = self.current.load();
        if let Some(made) = current.as_ref().filter(|made| made.process == process) {
            return Ok(Arc::clone(made));
        }
        let made = Arc::new(Made { process, value: make()? });
        let before = self.current.compare_and_swap(&current, Some(Arc::clone(&made)));
        match before.as_ref() {
            Some(other) if other.process == process => Ok(Arc::clone(other)),
            Some(parents) => {
                std::mem::forget(Arc::clone(parents));
                Ok(made)
            }
            None => Ok(made),
        }
    }
}

impl<T> Default for PerProcess<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T> Drop for PerProcess<T> {
    fn drop(&mut self) {
        let made = self.current.swap(None);
        if made.as_ref().is_some_and(|made| made.process != std::process::id()) {
            std::mem::forget(made);
        }
    }
}

impl<T> Deref for Made<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.value
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    #[test]
    fn threads_of_a_process_share_one() {
        static MADE: AtomicU32 = AtomicU32::new(0);
        static SHARED: PerProcess<u32> = PerProcess::new();
        let make = || Ok::<_, Infallible>(MADE.fetch_add(1, Ordering::Relaxed));
        let ask = move || SHARED.get(make).map(|made| **made);
        let threads: Vec<_> = (0..8).map(|_| std::thread::spawn(ask)).collect();
        let seen: Vec<_> = threads.into_iter().map(|t| t.join().expect("no panic")).collect();
        assert!(seen.iter().all(|one| *one == ask()), "{seen:?}");
    }

    #[test]
    fn a_childs_value_is_its_own() {
        let shared = PerProcess::new();
        let parents = Arc::new(());
        let kept = Arc::clone(&parents);
        // As a child finds it: made by a process of another number.
        let made = Made { process: std::process::id() + 1, value: kept };
        shared.current.store(Some(Arc::new(made)));
        let own = shared.get(|| Ok::<_, Infallible>(Arc::new(()))).expect("made");
        assert!(!Arc::ptr_eq(&**own, &parents));
        drop((own, shared));
        assert_eq!(Arc::strong_count(&parents), 2, "the parent's is not dropped");
    }
}
