//! The safetensors format: eight bytes of header length, a JSON header, the tensors' bytes.
//!
//! Source: the format's description at <https://github.com/huggingface/safetensors>.

use std::collections::BTreeMap;

use anyhow::{Context as _, ensure};
use keyway_proto::{Checksum, ChecksumKind};
use serde::{Deserialize, Serialize};

/// The longest header that readers of the format accept.
const HEADER_BYTES_MAX: usize = 100 << 20;
/// The header is padded with spaces so that tensors begin on a multiple of this.
const ALIGN_BYTES: usize = 64;

/// A transformer's measures.
const HIDDEN: u64 = 1024;
const FEED_FORWARD: u64 = 2816;
const VOCABULARY: u64 = 32_000;

/// Makes checkpoints.
pub(super) struct Checkpoint;

/// A tensor as the header tells it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Entry {
    dtype: String,
    shape: Vec<u64>,
    data_offsets: [u64; 2],
}

/// The tensors of a checkpoint: what the header says, and the checksum of each one's bytes.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Table(BTreeMap<String, (Entry, Checksum)>);

impl Checkpoint {
    /// A checkpoint of at least `bytes_min` bytes: embedding, as many layers as it takes,
    /// head. The same bytes every time, and no two tensors alike.
    pub(super) fn transformer(bytes_min: u64) -> Vec<u8> {
        let mut header = BTreeMap::new();
        let mut end = 0;
        let mut add = |name: String, shape: &[u64]| {
            // Two bytes a number: BF16.
            let bytes = shape.iter().product::<u64>() * 2;
            let data_offsets = [end, end + bytes];
            end += bytes;
            header.insert(name, Entry { dtype: "BF16".into(), shape: shape.into(), data_offsets });
            end
        };
        add("model.embed_tokens.weight".into(), &[VOCABULARY, HIDDEN]);
        add("lm_head.weight".into(), &[VOCABULARY, HIDDEN]);
        let mut bytes = add("model.norm.weight".into(), &[HIDDEN]);
        for layer in 0.. {
            if bytes >= bytes_min {
                break;
            }
            for (name, shape) in [
                ("input_layernorm.weight", &[HIDDEN] as &[u64]),
                ("self_attn.q_proj.weight", &[HIDDEN, HIDDEN]),
                ("self_attn.k_proj.weight", &[HIDDEN / 4, HIDDEN]),
                ("self_attn.v_proj.weight", &[HIDDEN / 4, HIDDEN]),
                ("self_attn.o_proj.weight", &[HIDDEN, HIDDEN]),
                ("post_attention_layernorm.weight", &[HIDDEN]),
                ("mlp.gate_proj.weight", &[FEED_FORWARD, HIDDEN]),
                ("mlp.up_proj.weight", &[FEED_FORWARD, HIDDEN]),
                ("mlp.down_proj.weight", &[HIDDEN, FEED_FORWARD]),
            ] {
                bytes = add(format!("model.layers.{layer}.{name}"), shape);
            }
        }
        let mut json = serde_json::to_vec(&header).expect("names and numbers are JSON");
        json.resize((json.len() + 8).next_multiple_of(ALIGN_BYTES) - 8, b' ');
        let data_start = 8 + json.len();
        let mut file = Vec::with_capacity(data_start + bytes as usize);
        file.extend_from_slice(&(json.len() as u64).to_le_bytes());
        file.extend_from_slice(&json);
        file.resize(data_start + bytes as usize, 0);
        crate::bench::pattern::fill(&mut file[data_start..], 0);
        file
    }
}

impl Table {
    /// Reads the header, and holds it against the bytes that are there.
    pub(super) fn read(file: &[u8]) -> anyhow::Result<Self> {
        let length = file.first_chunk::<8>().context("shorter than a header's length")?;
        let length = usize::try_from(u64::from_le_bytes(*length))?;
        ensure!(length <= HEADER_BYTES_MAX, "a header of {length} bytes");
        let rest = &file[8..];
        ensure!(length <= rest.len(), "the header is cut off");
        let (header, data) = rest.split_at(length);
        let header: BTreeMap<String, serde_json::Value> = serde_json::from_slice(header)?;
        let mut tensors = BTreeMap::new();
        for (name, entry) in header.into_iter().filter(|(name, _)| name != "__metadata__") {
            let entry: Entry = serde_json::from_value(entry)?;
            let [start, end] = entry.data_offsets;
            let bytes = usize::try_from(start)
                .ok()
                .zip(usize::try_from(end).ok())
                .and_then(|(start, end)| data.get(start..end))
                .with_context(|| format!("the tensor {name} lies outside the file"))?;
            let sum = Checksum::of(ChecksumKind::Crc64Nvme, bytes);
            tensors.insert(name, (entry, sum));
        }
        ensure!(!tensors.is_empty(), "a checkpoint without tensors");
        Ok(Self(tensors))
    }

    /// How many there are.
    pub(super) fn tensors(&self) -> usize {
        self.0.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_made_can_be_read() {
        let file = Checkpoint::transformer(140 << 20);
        assert!(file.len() > 140 << 20);
        let table = Table::read(&file).expect("a checkpoint");
        assert_eq!(table.tensors() % 9, 3, "three tensors around layers of nine");
        let (entry, _) = &table.0["model.layers.0.mlp.up_proj.weight"];
        assert_eq!(entry.shape, [FEED_FORWARD, HIDDEN]);
        let sums: std::collections::BTreeSet<_> =
            table.0.values().map(|(_, sum)| sum.to_hex()).collect();
        assert_eq!(sums.len(), table.tensors(), "no two tensors alike");

        let mut flipped = file.clone();
        *flipped.last_mut().expect("not empty") ^= 1;
        assert_ne!(Table::read(&flipped).expect("still a checkpoint"), table);
        assert!(Table::read(&file[..file.len() - 1]).is_err(), "cut off");
    }

    #[test]
    fn foreign_files_are_refused() {
        for file in [&b""[..], b"short", &[0xff; 64], b"\x02\0\0\0\0\0\0\0{}"] {
            assert!(Table::read(file).is_err());
        }
        let mut lies = br#"{"t":{"dtype":"U8","shape":[9],"data_offsets":[5,2]}}"#.to_vec();
        let mut file = (lies.len() as u64).to_le_bytes().to_vec();
        file.append(&mut lies);
        file.extend([0; 9]);
        assert!(Table::read(&file).is_err(), "offsets that run backwards");
    }
}
