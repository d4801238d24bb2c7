//! Who goes when room is needed: S3-FIFO.
//!
//! New chunks enter a small queue, a tenth of the memory. Those that were used by the time they
//! reach its end move on to the main queue; the others go, and leave a ghost: their id alone.
//! A chunk that returns while its ghost lives enters the main queue at once. There, used chunks
//! go round again, each round costing a use. So a scan, however long, passes through the small
//! queue and leaves the rest alone. A hit only sets a counter in the entry: it takes no lock
//! and moves nothing. (Yang et al., "FIFO queues are all you need for cache eviction", 2023.
//! There, two uses are needed to move on; here one, since reading on in a chunk that the same
//! reader brought in is no use.)
//!
//! No memory, no lock, no clock: whoever holds the queues asks for one victim at a time.

use std::collections::{HashSet, VecDeque};

use keyway_proto::ChunkId;

/// Entries looked at for one victim: what bounds the work of a miss.
const STEPS_MAX: usize = 256;

/// The small queue's part of the memory.
const SMALL_SHARE: u64 = 10;

/// Ids remembered at most, however small the chunks: some 40 MiB with their sets.
const GHOSTS_MAX: usize = 1 << 20;

/// What a queued entry says of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Standing {
    /// A transfer has its bytes: it gives no memory back now.
    Pinned,
    /// It was used since it was asked last; that use is taken off.
    Used,
    /// It was not.
    Idle,
}

/// What the queues hold.
pub(super) trait Queued {
    /// Whether it was released, or is gone otherwise.
    fn is_gone(&self) -> bool;

    /// Asked when it is at a queue's end.
    fn standing(&self) -> Standing;
}

pub(super) struct Queues<T> {
    small: Queue<T>,
    main: Queue<T>,
    ghosts: Ghosts,
    small_bytes_max: u64,
    /// Entries that are gone and still queued.
    gone: usize,
}

struct Queue<T> {
    nodes: VecDeque<Node<T>>,
    bytes: u64,
}

struct Node<T> {
    id: ChunkId,
    bytes: u64,
    item: T,
}

impl<T: Queued> Queues<T> {
    /// For memory of `capacity_bytes`.
    pub(super) fn new(capacity_bytes: u64) -> Self {
        Self {
            small: Queue::new(),
            main: Queue::new(),
            ghosts: Ghosts::new(capacity_bytes),
            small_bytes_max: capacity_bytes / SMALL_SHARE,
            gone: 0,
        }
    }

    /// Queues an entry; one that is `wanted` for longer enters the main queue.
    pub(super) fn insert(&mut self, id: ChunkId, bytes: u64, item: T, wanted: bool) {
        let node = Node { id, bytes, item };
        if self.ghosts.take(id) || wanted { self.main.push(node) } else { self.small.push(node) }
    }

    /// Takes out the next that should go; `None` when none was found within a bounded search.
    pub(super) fn victim(&mut self) -> Option<T> {
        // Those of the small queue that stay there: when it is full of them, main's turn comes.
        let mut pinned = 0;
        for _ in 0..STEPS_MAX.min(4 * (self.small.nodes.len() + self.main.nodes.len())) {
            let small_has_more = pinned < self.small.nodes.len();
            let is_full = self.small.bytes >= self.small_bytes_max;
            let from_small = self.main.nodes.is_empty() || is_full && small_has_more;
            let node = if from_small { self.small.pop() } else { self.main.pop() }?;
            if node.item.is_gone() {
                self.gone = self.gone.saturating_sub(1);
                continue;
            }
            match node.item.standing() {
                Standing::Pinned if from_small => {
                    pinned += 1;
                    self.small.push(node);
                }
                Standing::Pinned | Standing::Used => self.main.push(node),
                Standing::Idle => {
                    if from_small {
                        self.ghosts.insert(node.id, node.bytes);
                    }
                    return Some(node.item);
                }
            }
        }
        None
    }

    /// Tells that an entry is gone; when half of them are, their nodes go too.
    pub(super) fn forget_one(&mut self) {
        self.gone += 1;
        if self.gone * 2 > self.small.nodes.len() + self.main.nodes.len() {
            self.small.sweep();
            self.main.sweep();
            self.gone = 0;
        }
    }

    #[cfg(test)]
    fn len(&self) -> usize {
        self.small.nodes.len() + self.main.nodes.len()
    }
}

impl<T: Queued> Queue<T> {
    fn new() -> Self {
        Self { nodes: VecDeque::new(), bytes: 0 }
    }

    fn push(&mut self, node: Node<T>) {
        self.bytes += node.bytes;
        self.nodes.push_back(node);
    }

    fn pop(&mut self) -> Option<Node<T>> {
        let node = self.nodes.pop_front()?;
        self.bytes -= node.bytes;
        Some(node)
    }

    fn sweep(&mut self) {
        self.nodes.retain(|node| !node.item.is_gone());
        self.bytes = self.nodes.iter().map(|node| node.bytes).sum();
    }
}

/// Ids of chunks that went unused, as many as would fill the memory once more.
struct Ghosts {
    queue: VecDeque<(ChunkId, u64)>,
    ids: HashSet<ChunkId>,
    bytes: u64,
    bytes_max: u64,
}

impl Ghosts {
    fn new(bytes_max: u64) -> Self {
        Self { queue: VecDeque::new(), ids: HashSet::new(), bytes: 0, bytes_max }
    }

    fn insert(&mut self, id: ChunkId, bytes: u64) {
        self.ids.insert(id);
        self.queue.push_back((id, bytes));
        self.bytes += bytes;
        while self.bytes > self.bytes_max || self.queue.len() > GHOSTS_MAX {
            let Some((id, bytes)) = self.queue.pop_front() else { return };
            self.ids.remove(&id);
            self.bytes -= bytes;
        }
    }

    /// Whether the id was there. It is not from then on.
    fn take(&mut self, id: ChunkId) -> bool {
        self.ids.remove(&id)
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::rc::Rc;

    use super::*;

    #[derive(Default)]
    struct Item {
        uses: Cell<u8>,
        pinned: Cell<bool>,
        gone: Cell<bool>,
    }

    impl Queued for Rc<Item> {
        fn is_gone(&self) -> bool {
            self.gone.get()
        }

        fn standing(&self) -> Standing {
            match (self.pinned.get(), self.uses.get()) {
                (true, _) => Standing::Pinned,
                (false, 0) => Standing::Idle,
                (false, uses) => {
                    self.uses.set(uses - 1);
                    Standing::Used
                }
            }
        }
    }

    fn insert(queues: &mut Queues<Rc<Item>>, id: ChunkId) -> Rc<Item> {
        let item = Rc::<Item>::default();
        queues.insert(id, 10, Rc::clone(&item), false);
        item
    }

    /// A hot set that fills most of the memory survives a scan of ten times as much.
    #[test]
    fn a_scan_passes_through() {
        let mut queues = Queues::new(1000);
        let hot: Vec<_> = (0..90).map(|_| insert(&mut queues, ChunkId::generate())).collect();
        hot.iter().for_each(|item| item.uses.set(1));
        let mut held = 90;
        for _ in 0..1000 {
            if held == 100 {
                let victim = queues.victim().expect("something is idle");
                assert!(!hot.iter().any(|item| Rc::ptr_eq(item, &victim)), "a hot one went");
                held -= 1;
            }
            insert(&mut queues, ChunkId::generate());
            held += 1;
            hot.iter().for_each(|item| item.uses.set(1));
        }
    }

    /// What comes back soon after it went is taken for longer.
    #[test]
    fn ghosts_return_to_main() {
        let mut queues = Queues::new(100);
        let back = ChunkId::generate();
        insert(&mut queues, back);
        insert(&mut queues, ChunkId::generate());
        queues.victim().expect("idle");
        let back = insert(&mut queues, back);
        for _ in 0..5 {
            insert(&mut queues, ChunkId::generate());
            let victim = queues.victim().expect("idle");
            assert!(!Rc::ptr_eq(&victim, &back), "main is left alone while small is too big");
        }
    }

    #[test]
    fn pinned_ones_stay_and_the_search_ends() {
        let mut queues = Queues::new(100);
        let items: Vec<_> = (0..20).map(|_| insert(&mut queues, ChunkId::generate())).collect();
        items.iter().for_each(|item| item.pinned.set(true));
        assert!(queues.victim().is_none());
        items[13].pinned.set(false);
        let victim = queues.victim().expect("one is idle");
        assert!(Rc::ptr_eq(&victim, &items[13]));
        assert_eq!(queues.len(), 19);
    }

    /// Entries that come and go without any need for room leave nothing behind.
    #[test]
    fn what_is_gone_does_not_pile_up() {
        let mut queues = Queues::new(u64::MAX);
        let kept: Vec<_> = (0..10).map(|_| insert(&mut queues, ChunkId::generate())).collect();
        for _ in 0..10_000 {
            insert(&mut queues, ChunkId::generate()).gone.set(true);
            queues.forget_one();
            assert!(queues.len() <= 2 * kept.len() + 2);
        }
        let mut ghosts = Ghosts::new(100);
        for _ in 0..1000 {
            ghosts.insert(ChunkId::generate(), 10);
        }
        assert_eq!((ghosts.queue.len(), ghosts.ids.len(), ghosts.bytes), (10, 10, 100));
    }
}
