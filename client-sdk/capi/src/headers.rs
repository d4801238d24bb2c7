//! Goal: the headers say what this crate is.
//!
//! Method: a C file is written out of the Rust types themselves: every structure's size and the
//! place of every field as a static assertion, every function declared again with the types that
//! Rust has. The C compiler refuses a second declaration that differs from the header's. That no
//! function is left out is seen by counting them in the sources and in the headers.

use std::ffi::{c_char, c_void};
use std::fmt::Write as _;
use std::mem::offset_of;
use std::path::Path;
use std::process::Command;

use crate::abi::{
    KeywayClientOptions, KeywayCompletion, KeywayEntry, KeywayError, KeywayGetOptions,
    KeywayObject, KeywayPutOptions, KeywayRange, KeywayRequest, KeywayResult,
};
use crate::client::{self, KeywayClient, KeywayListing};
use crate::cufile::{
    self, KwFileBatch, KwFileDescr, KwFileError, KwFileHandle, KwFileIoEvents, KwFileIoParams,
};
use crate::queue::{self, KeywayQueue};
use crate::{memory, transfer};

/// A type as C writes it.
trait InC {
    fn name() -> String;
}

macro_rules! in_c {
    ($($rust:ty => $c:literal),+ $(,)?) => {$(
        impl InC for $rust {
            fn name() -> String {
                $c.to_owned()
            }
        }
    )+};
}

in_c! {
    () => "void",
    c_void => "void",
    c_char => "char",
    i32 => "int32_t",
    u32 => "uint32_t",
    i64 => "int64_t",
    u64 => "uint64_t",
    usize => "size_t",
    isize => "ssize_t",
    libc::timespec => "struct timespec",
    KeywayError => "keyway_error",
    KeywayClientOptions => "keyway_client_options",
    KeywayResult => "keyway_result",
    KeywayGetOptions => "keyway_get_options",
    KeywayPutOptions => "keyway_put_options",
    KeywayRange => "keyway_range",
    KeywayObject => "keyway_object",
    KeywayEntry => "keyway_entry",
    KeywayRequest => "keyway_request",
    KeywayCompletion => "keyway_completion",
    KeywayClient => "keyway_client",
    KeywayListing => "keyway_listing",
    KeywayQueue => "keyway_queue",
    KwFileError => "KWfileError_t",
    KwFileDescr => "KWfileDescr_t",
    KwFileIoParams => "KWfileIOParams_t",
    KwFileIoEvents => "KWfileIOEvents_t",
    KwFileHandle => "struct kwfile_handle",
    KwFileBatch => "struct kwfile_batch",
}

impl<T: InC> InC for *mut T {
    fn name() -> String {
        format!("{} *", T::name())
    }
}

impl<T: InC> InC for *const T {
    fn name() -> String {
        format!("{} const *", T::name())
    }
}

/// A function as C declares it.
trait Declared {
    fn declaration(name: &str) -> String;
}

macro_rules! declared {
    ($($argument:ident)*) => {
        impl<R: InC, $($argument: InC),*> Declared for unsafe extern "C" fn($($argument),*) -> R {
            fn declaration(name: &str) -> String {
                let arguments: Vec<String> = vec![$($argument::name()),*];
                let arguments = arguments.join(", ");
                let arguments = if arguments.is_empty() { "void" } else { &arguments };
                format!("{} {name}({arguments});\n", R::name())
            }
        }
    };
}

declared!();
declared!(A);
declared!(A B);
declared!(A B C);
declared!(A B C D);
declared!(A B C D E);
declared!(A B C D E F);
declared!(A B C D E F G);

fn declare<F: Declared>(_function: F, name: &str) -> String {
    F::declaration(name)
}

macro_rules! functions {
    ($($module:ident: $($name:ident $blanks:tt),+;)+) => {
        [$($((stringify!($name), declare($module::$name as functions!(@ $blanks), stringify!($name)))),+),+]
    };
    (@ 0) => { unsafe extern "C" fn() -> _ };
    (@ 1) => { unsafe extern "C" fn(_) -> _ };
    (@ 2) => { unsafe extern "C" fn(_, _) -> _ };
    (@ 3) => { unsafe extern "C" fn(_, _, _) -> _ };
    (@ 4) => { unsafe extern "C" fn(_, _, _, _) -> _ };
    (@ 5) => { unsafe extern "C" fn(_, _, _, _, _) -> _ };
    (@ 6) => { unsafe extern "C" fn(_, _, _, _, _, _) -> _ };
    (@ 7) => { unsafe extern "C" fn(_, _, _, _, _, _, _) -> _ };
}

macro_rules! layout {
    ($to:ident: $($rust:ident, $c:literal { $($field:ident $(as $theirs:literal)?),* })+) => {$(
        writeln!($to, "_Static_assert(sizeof({}) == {}, \"{}\");", $c, size_of::<$rust>(), $c)
            .expect("text");
        $(
            #[allow(unused_mut, unused_assignments, reason = "most fields have C's names")]
            let mut theirs = stringify!($field);
            $(theirs = $theirs;)?
            let at = offset_of!($rust, $field);
            writeln!(
                $to,
                "_Static_assert(offsetof({}, {theirs}) == {at}, \"{}.{theirs}\");", $c, $c
            ).expect("text");
        )*
    )+};
}

fn layouts() -> String {
    let mut text = String::new();
    layout! { text:
        KeywayError, "keyway_error" { size, code, http_status, s3_code, request_id, message }
        KeywayClientOptions, "keyway_client_options" {
            size, endpoint, region, access_key, secret_key, session_token, ca_file, path,
            require_strength, get_part_bytes, put_part_bytes, concurrency, connections_max,
            attempts_max, connect_timeout_ms, stall_timeout_ms, flags
        }
        KeywayResult, "keyway_result" {
            size, bytes, object_bytes, verified, retries, fallbacks, durability, path, strength,
            checksum, etag, fallback
        }
        KeywayGetOptions, "keyway_get_options" {
            size, offset, length, version, if_match, part_bytes, concurrency, timeout_ms, stream
        }
        KeywayPutOptions, "keyway_put_options" {
            size, content_type, if_match, part_bytes, concurrency, timeout_ms, stream, flags
        }
        KeywayRange, "keyway_range" { offset, memory, bytes }
        KeywayObject, "keyway_object" {
            size, bytes, modified_ms, etag, version, content_type, crc64nvme
        }
        KeywayEntry, "keyway_entry" { size, key, bytes, modified_ms, is_prefix, etag }
        KeywayRequest, "keyway_request" {
            size, tag, url, memory, bytes, offset, length, stream, operation, timeout_ms,
            flags
        }
        KeywayCompletion, "keyway_completion" { tag, status, result, error }
        KwFileError, "KWfileError_t" { err, cu_err }
        KwFileDescr, "KWfileDescr_t" { kind as "type", handle, fs_ops }
        KwFileIoParams, "KWfileIOParams_t" { mode, batch as "u", fh, opcode, cookie }
        KwFileIoEvents, "KWfileIOEvents_t" { cookie, status, ret }
    }
    text
}

fn declarations() -> Vec<(&'static str, String)> {
    functions! {
        client: keyway_abi_version 0, keyway_client_open 3, keyway_client_close 1, keyway_head 4,
            keyway_delete 3, keyway_create_bucket 3, keyway_list_open 5, keyway_list_next 3,
            keyway_list_close 1;
        transfer: keyway_get 7, keyway_get_ranges 7, keyway_put 7, keyway_flush 5;
        memory: keyway_memory_register 3, keyway_memory_deregister 2;
        queue: keyway_queue_open 2, keyway_queue_fd 1, keyway_submit 5, keyway_queue_wait 5,
            keyway_queue_close 1;
        cufile: kwFileDriverOpen 0, kwFileDriverOpenWith 1, kwFileDriverClose 0,
            kwFileHandleRegister 2, kwFileHandleDeregister 1, kwFileBufRegister 3,
            kwFileBufDeregister 1, kwFileRead 5, kwFileWrite 5, kwFileReadAsync 7,
            kwFileWriteAsync 7, kwFileBatchIOSetUp 2, kwFileBatchIOSubmit 4,
            kwFileBatchIOGetStatus 5, kwFileBatchIODestroy 1, kwFileLastError 0;
    }
    .into()
}

#[test]
fn a_c_compiler_agrees() {
    let crate_dir = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut source = String::from("#include \"keyway_cufile.h\"\n#include <stddef.h>\n");
    source.push_str(&layouts());
    for (_, declaration) in declarations() {
        source.push_str(&declaration);
    }
    let work = tempfile::tempdir().expect("a directory");
    let file = work.path().join("agree.c");
    std::fs::write(&file, &source).expect("written");
    for standard in ["-std=c11", "-std=gnu17"] {
        let said = Command::new("cc")
            .args([standard, "-D_GNU_SOURCE", "-Wall", "-Wextra", "-Werror", "-fsyntax-only"])
            .arg("-I")
            .arg(crate_dir.join("include"))
            .arg(&file)
            .output()
            .expect("a C compiler");
        let errors = String::from_utf8_lossy(&said.stderr);
        assert!(said.status.success(), "{errors}");
    }
}

#[test]
fn no_function_is_left_out() {
    let crate_dir = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut declared: Vec<&str> = declarations().iter().map(|(name, _)| *name).collect();
    declared.sort_unstable();
    let mut defined = Vec::new();
    let folders = ["src", "src/cufile"].map(|folder| crate_dir.join(folder));
    let entries = folders.iter().flat_map(|folder| std::fs::read_dir(folder).expect("sources"));
    let files = entries.map(|entry| entry.expect("a file").path()).filter(|path| path.is_file());
    for file in files {
        let text = std::fs::read_to_string(file).expect("text");
        for (at, _) in text.match_indices("#[unsafe(no_mangle)]\n") {
            let rest = &text[at..];
            let name = rest.split(" fn ").nth(1).and_then(|rest| rest.split('(').next());
            defined.push(name.expect("a function").to_owned());
        }
    }
    defined.sort_unstable();
    assert_eq!(defined, declared, "every exported function is held against the headers");
    let mut promised = Vec::new();
    for header in ["include/keyway.h", "include/keyway_cufile.h"] {
        let text = std::fs::read_to_string(crate_dir.join(header)).expect("a header");
        let text: String =
            text.split("/*").map(|part| part.rsplit("*/").next().unwrap_or("")).collect();
        for (at, _) in text.match_indices('(') {
            let before = &text[..at];
            let start =
                before.rfind(|c: char| !c.is_alphanumeric() && c != '_').map_or(0, |i| i + 1);
            let name = &before[start..];
            if name.starts_with("keyway_") || name.starts_with("kwFile") {
                promised.push(name.to_owned());
            }
        }
    }
    promised.sort_unstable();
    assert_eq!(promised, declared, "the headers declare what there is");
}
