use proptest::prelude::*;

use super::*;

#[test]
fn neighbours_join_and_strangers_do_not() {
    let mut buffer = HostBuffer::from(vec![0; 10]);
    let mut front = buffer.slice_mut(..).expect("free");
    let rest = {
        let first = front.split_to(4);
        std::mem::replace(&mut front, first)
    };
    let mut other = HostBuffer::from(vec![0; 10]);
    let stranger = other.slice_mut(4..).expect("free");
    assert!(front.unsplit(stranger).is_err());
    assert!(front.unsplit(rest).is_ok());
    assert_eq!((front.offset(), front.len()), (0, 10));
    assert_eq!(buffer.slice_mut(9..).err(), Some(LendError::Lent));
    drop(front);
    assert!(buffer.bytes_mut().is_ok());
}

#[test]
fn exclusive_slices_never_overlap() {
    let mut buffer = HostBuffer::zeroed(100).expect("memory");
    let front = buffer.slice_mut(..60).expect("free");
    assert_eq!(buffer.slice_mut(59..).err(), Some(LendError::Lent));
    assert_eq!(buffer.slice(0..1).err(), Some(LendError::Lent));
    let back = buffer.slice_mut(60..).expect("free");
    assert_eq!(buffer.bytes().err(), Some(LendError::Lent));
    drop(front);
    assert!(buffer.slice_mut(0..60).is_ok());
    drop(back);
    assert!(buffer.bytes().is_ok());
}

#[test]
fn a_slice_outlives_its_buffer() {
    let mut buffer = HostBuffer::from(vec![7; 10]);
    let mut slice = buffer.slice_mut(2..5).expect("free");
    drop(buffer);
    slice.fill(9);
    assert_eq!(&slice[..], [9; 3]);
}

#[test]
fn bytes_come_back_as_the_vector_they_were() {
    let vec = Vec::from_iter(0..100u8);
    let address = vec.as_ptr();
    let mut buffer = HostBuffer::from(vec);
    buffer.slice_mut(..3).expect("free").fill(0);
    let shared = buffer.slice(1..5).expect("free").into_bytes();
    let buffer = buffer.into_vec().expect_err("lent");
    assert_eq!(&shared[..], [0, 0, 3, 4]);
    drop(shared);
    let vec = buffer.into_vec().expect("all came back");
    assert_eq!(vec.as_ptr(), address);
    assert_eq!(vec[..4], [0, 0, 0, 3]);
}

#[test]
fn a_registered_buffer_ends_with_its_last_user() {
    let mut buffer = HostBuffer::from(vec![7; 10]);
    let slice = buffer.slice(..).expect("free");
    let (life, anchor) = (slice.life(), slice.anchor());
    let buffer = buffer.into_vec().expect_err("lent");
    drop(slice);
    assert!(!life.is_over());
    // Registered memory is not given away: a copy is.
    let vec = buffer.into_vec().expect("nothing lent");
    assert!(life.is_over());
    assert_eq!(vec, [7; 10]);
    assert_ne!(vec.as_ptr() as u64, anchor.address());
}

/// Foreign memory is used where it lies, and its owner is let go with the last user.
#[test]
fn foreign_memory_stays_its_owner_s() {
    let owner = Arc::new(Region::map(100).expect("memory"));
    let alive = Arc::downgrade(&owner);
    let base = owner.base();
    // SAFETY: the region lives as long as its `Arc`, and nobody else uses it.
    let mut buffer = unsafe { HostBuffer::foreign(base, 100, owner) };
    let mut slice = buffer.slice_mut(10..20).expect("free");
    assert_eq!(slice.address(), base.as_ptr() as u64 + 10);
    slice.fill(7);
    let anchor = slice.exact_anchor();
    let buffer = buffer.into_vec().expect_err("lent");
    drop(slice);
    let vec = buffer.into_vec().expect("nothing lent");
    assert!(vec[..10].iter().all(|byte| *byte == 0) && vec[10..20] == [7; 10]);
    assert!(alive.upgrade().is_some(), "a registration may still reach it");
    drop(anchor);
    assert!(alive.upgrade().is_none());
}

#[test]
fn ranges_outside_are_refused() {
    let mut buffer = HostBuffer::from(vec![0; 4]);
    let refused = LendError::OutOfRange { start: 2, end: 5, length: 4 };
    assert_eq!(buffer.slice_mut(2..5).err(), Some(refused));
    assert!(buffer.slice(..=usize::MAX).is_err());
    assert!(buffer.slice_mut(4..).is_ok_and(|slice| slice.is_empty()));
}

#[test]
fn an_empty_buffer_works() {
    let mut buffer = HostBuffer::zeroed(0).expect("nothing to map");
    assert!(buffer.is_empty());
    assert!(buffer.chunks_mut(8).expect("free").is_empty());
    assert_eq!(buffer.into_vec().expect("nothing lent"), Vec::<u8>::new());
}

proptest! {
    /// Pieces filled side by side make up the whole, wherever the cuts are.
    #[test]
    fn pieces_make_up_the_whole(length in 0usize..500, piece in 1usize..100) {
        let mut buffer = HostBuffer::zeroed(length).expect("memory");
        for mut slice in buffer.chunks_mut(piece).expect("free") {
            let offset = slice.offset();
            for (at, byte) in slice.iter_mut().enumerate() {
                *byte = (offset + at) as u8;
            }
            drop(slice.freeze());
        }
        let bytes = buffer.into_vec().expect("all came back");
        prop_assert!(bytes.iter().enumerate().all(|(at, byte)| *byte == at as u8));
    }
}
