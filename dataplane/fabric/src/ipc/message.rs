//! What the two ends say to each other at the door and after it.
//!
//! One message is one packet of [`BYTES`] bytes, little-endian, with at most one descriptor.
//! Both ends are of one release or of two that follow each other, so there is a version in the
//! first message and none later.

use keyway_proto::DoorTicket;

/// Size of every message.
pub(super) const BYTES: usize = 128;
/// What this build speaks.
pub(super) const VERSION: u32 = 1;

/// A message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Message {
    /// Client: the first word.
    Hello { version: u32, ticket: DoorTicket },
    /// Node: come in. Comes with the table's descriptor.
    Welcome { slots: u32 },
    /// Client: map this memory. Host memory comes with its descriptor, and so does GPU memory
    /// whose handle is one.
    Register { region: u32, base: u64, bytes: u64, memory: Memory },
    /// Node: it is mapped.
    Registered { region: u32 },
    /// Node: it is not.
    Refused { region: u32, why: Refusal },
    /// Client: let go of it.
    Unregister { region: u32 },
    /// Node: it is unmapped.
    Unregistered { region: u32 },
    /// Client: end the session. Node: it has ended, and nothing of the client's is mapped.
    Bye,
}

/// Whose memory it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Memory {
    /// A memory file.
    Host,
    /// A GPU's, by an IPC handle.
    GpuIpc { gpu: [u8; 16], handle: [u8; 64] },
    /// A GPU's, by a descriptor.
    GpuFile { gpu: [u8; 16] },
}

/// Why a node does not map memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Refusal {
    /// It is not sealed, too short, or has no descriptor.
    #[error("the memory cannot be shared safely")]
    Unsafe,
    /// The node has no such GPU, or may not use it.
    #[error("the node does not use that GPU")]
    NoGpu,
    /// The session has as many regions as it may.
    #[error("too many regions")]
    TooMany,
    /// The kernel or the driver refused.
    #[error("the memory could not be mapped")]
    Failed,
}

const REFUSALS: [Refusal; 4] = [Refusal::Unsafe, Refusal::NoGpu, Refusal::TooMany, Refusal::Failed];

/// Not one of the messages above.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Malformed;

impl Message {
    pub(super) fn encode(&self) -> [u8; BYTES] {
        let mut out = Writer { bytes: [0; BYTES], at: 0 };
        match self {
            Self::Hello { version, ticket } => out.u32(1).u32(*version).put(&ticket.0),
            Self::Welcome { slots } => out.u32(2).u32(*slots),
            Self::Register { region, base, bytes, memory } => {
                out.u32(3).u32(*region).u64(*base).u64(*bytes);
                match memory {
                    Memory::Host => out.u32(0),
                    Memory::GpuIpc { gpu, handle } => out.u32(1).put(gpu).put(handle),
                    Memory::GpuFile { gpu } => out.u32(2).put(gpu),
                }
            }
            Self::Registered { region } => out.u32(4).u32(*region),
            Self::Refused { region, why } => {
                let why = REFUSALS.iter().position(|known| known == why).unwrap_or(0);
                out.u32(5).u32(*region).u32(why as u32)
            }
            Self::Unregister { region } => out.u32(6).u32(*region),
            Self::Unregistered { region } => out.u32(7).u32(*region),
            Self::Bye => out.u32(8),
        };
        out.bytes
    }

    pub(super) fn decode(bytes: &[u8]) -> Result<Self, Malformed> {
        let bytes: &[u8; BYTES] = bytes.try_into().map_err(|_| Malformed)?;
        let mut from = Reader { bytes, at: 0 };
        Ok(match from.u32() {
            1 => Self::Hello { version: from.u32(), ticket: DoorTicket(from.take()) },
            2 => Self::Welcome { slots: from.u32() },
            3 => Self::Register {
                region: from.u32(),
                base: from.u64(),
                bytes: from.u64(),
                memory: match from.u32() {
                    0 => Memory::Host,
                    1 => Memory::GpuIpc { gpu: from.take(), handle: from.take() },
                    2 => Memory::GpuFile { gpu: from.take() },
                    _ => return Err(Malformed),
                },
            },
            4 => Self::Registered { region: from.u32() },
            5 => {
                let region = from.u32();
                let why = REFUSALS.get(from.u32() as usize).copied().ok_or(Malformed)?;
                Self::Refused { region, why }
            }
            6 => Self::Unregister { region: from.u32() },
            7 => Self::Unregistered { region: from.u32() },
            8 => Self::Bye,
            _ => return Err(Malformed),
        })
    }
}

struct Writer {
    bytes: [u8; BYTES],
    at: usize,
}

impl Writer {
    fn put(&mut self, part: &[u8]) -> &mut Self {
        self.bytes[self.at..self.at + part.len()].copy_from_slice(part);
        self.at += part.len();
        self
    }

    fn u32(&mut self, value: u32) -> &mut Self {
        self.put(&value.to_le_bytes())
    }

    fn u64(&mut self, value: u64) -> &mut Self {
        self.put(&value.to_le_bytes())
    }
}

struct Reader<'a> {
    bytes: &'a [u8; BYTES],
    at: usize,
}

impl Reader<'_> {
    /// The longest message is shorter than [`BYTES`], so what is taken is always there.
    fn take<const N: usize>(&mut self) -> [u8; N] {
        let part = self.bytes[self.at..self.at + N].try_into().expect("N bytes");
        self.at += N;
        part
    }

    fn u32(&mut self) -> u32 {
        u32::from_le_bytes(self.take())
    }

    fn u64(&mut self) -> u64 {
        u64::from_le_bytes(self.take())
    }
}

/// Tag, region, base, bytes, kind, GPU, handle.
const _: () = assert!(4 + 4 + 8 + 8 + 4 + 16 + 64 <= BYTES);

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn messages_arrive_as_they_were_sent() {
        let gpu = [7; 16];
        let memory =
            [Memory::Host, Memory::GpuIpc { gpu, handle: [9; 64] }, Memory::GpuFile { gpu }];
        let register =
            memory.map(|memory| Message::Register { region: 1, base: 2, bytes: 3, memory });
        let refused = REFUSALS.map(|why| Message::Refused { region: 5, why });
        let rest = [
            Message::Hello { version: VERSION, ticket: DoorTicket([3; 16]) },
            Message::Welcome { slots: 32 },
            Message::Registered { region: 4 },
            Message::Unregister { region: 4 },
            Message::Unregistered { region: 4 },
            Message::Bye,
        ];
        for message in register.into_iter().chain(refused).chain(rest) {
            assert_eq!(Message::decode(&message.encode()), Ok(message));
        }
    }

    proptest! {
        #[test]
        fn foreign_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..=BYTES + 1)) {
            let _ = Message::decode(&bytes);
            let mut whole = [0; BYTES];
            let known = bytes.len().min(BYTES);
            whole[..known].copy_from_slice(&bytes[..known]);
            whole[0] %= 10;
            whole[1..4].fill(0);
            let _ = Message::decode(&whole);
        }
    }
}
