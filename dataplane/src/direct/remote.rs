//! A client's windows as one run of bytes.

use keyway_proto::{DirectTarget, RemoteWindow};

/// How far a transfer has come in its windows.
pub(super) struct RemoteCursor {
    windows: Vec<RemoteWindow>,
    at: usize,
    offset: u32,
}

impl RemoteCursor {
    /// At the first byte of the first window.
    pub(super) fn new(target: &DirectTarget) -> Self {
        Self { windows: target.windows().to_vec(), at: 0, offset: 0 }
    }

    /// The next `bytes` bytes: runs, each in one window. Fewer when the windows end before.
    pub(super) fn take(&mut self, mut bytes: u32) -> Vec<RemoteWindow> {
        let mut runs = Vec::with_capacity(1);
        while bytes > 0
            && let Some(window) = self.windows.get(self.at)
        {
            let length = bytes.min(window.length - self.offset);
            let address = window.address + u64::from(self.offset);
            runs.push(RemoteWindow { address, length, key: window.key });
            bytes -= length;
            self.offset += length;
            if self.offset == window.length {
                (self.at, self.offset) = (self.at + 1, 0);
            }
        }
        runs
    }
}

#[cfg(test)]
mod tests {
    use keyway_proto::{RemoteKey, SessionId, SessionToken};

    use super::*;

    #[test]
    fn runs_follow_the_windows() {
        let window = |address, length| RemoteWindow { address, length, key: RemoteKey(1) };
        let windows = vec![window(0x1000, 10), window(0x5000, 4), window(0x9000, 100)];
        let token = SessionToken::new(SessionId(1), windows).expect("sound");
        let mut cursor = RemoteCursor::new(&token.into());
        assert_eq!(cursor.take(4), [window(0x1000, 4)]);
        assert_eq!(cursor.take(12), [window(0x1004, 6), window(0x5000, 4), window(0x9000, 2)]);
        assert_eq!(cursor.take(98), [window(0x9002, 98)]);
        assert_eq!(cursor.take(1), []);
    }
}
