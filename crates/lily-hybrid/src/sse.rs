//! Server-sent events, read in pieces of any size.

/// Longest event in bytes; a provider that sends more is not answered further.
const MOST_BYTES: usize = 8 << 20;

/// What cannot be an event stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum SseError {
    /// Bytes that are no text.
    #[error("the event stream is no UTF-8")]
    Utf8,
    /// An event without an end.
    #[error("an event is longer than {MOST_BYTES} bytes")]
    TooLong,
}

/// The data of events, as the WHATWG's specification says; names, ids and comments say nothing to us.
#[derive(Debug, Default)]
pub(crate) struct SseReader {
    line: Vec<u8>,
    /// The last byte was a carriage return: a line feed after it ends nothing.
    after_return: bool,
    data: Option<String>,
}

impl SseReader {
    /// Adds the data of every event that ends in `bytes`.
    pub(crate) fn push(&mut self, bytes: &[u8], events: &mut Vec<String>) -> Result<(), SseError> {
        for &byte in bytes {
            if byte == b'\n' && std::mem::take(&mut self.after_return) {
                continue;
            }
            self.after_return = byte == b'\r';
            if byte == b'\n' || byte == b'\r' {
                self.end_line(events)?;
            } else {
                self.line.push(byte);
                if self.line.len() + self.data.as_ref().map_or(0, String::len) > MOST_BYTES {
                    return Err(SseError::TooLong);
                }
            }
        }
        Ok(())
    }

    fn end_line(&mut self, events: &mut Vec<String>) -> Result<(), SseError> {
        let line = std::str::from_utf8(&self.line).map_err(|_| SseError::Utf8)?;
        if line.is_empty() {
            events.extend(self.data.take());
        } else {
            let (name, value) = line.split_once(':').unwrap_or((line, ""));
            if name == "data" {
                let value = value.strip_prefix(' ').unwrap_or(value);
                match &mut self.data {
                    Some(data) => {
                        data.push('\n');
                        data.push_str(value);
                    }
                    None => self.data = Some(value.to_owned()),
                }
            }
        }
        self.line.clear();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_do_not_depend_on_the_cuts() {
        let text = "event: x\r\ndata: {\"a\":\"é\"}\r\n\r\n: note\ndata:one\ndata: two\n\nid: 7\rdata:  three\r\rdata: [DONE]\n\n";
        let whole = ["{\"a\":\"é\"}", "one\ntwo", " three", "[DONE]"];
        for size in 1..text.len() {
            let (mut reader, mut events) = (SseReader::default(), Vec::new());
            for piece in text.as_bytes().chunks(size) {
                reader.push(piece, &mut events).unwrap();
            }
            assert_eq!(events, whole, "pieces of {size}");
        }
    }

    #[test]
    fn what_is_no_stream_is_refused() {
        let mut events = Vec::new();
        assert_eq!(SseReader::default().push(b"data: \xff\n", &mut events), Err(SseError::Utf8));
        let long = vec![b'x'; MOST_BYTES + 1];
        assert_eq!(SseReader::default().push(&long, &mut events), Err(SseError::TooLong));
    }
}
