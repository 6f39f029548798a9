//! Where a parameter's value ends.
//!
//! Values are raw text and may hold any markup, closers included, so a closer is one only if what follows it makes
//! sense: another parameter, or the end of the function and then the end of the output or the next call. Of several
//! closers that could end a value the last one does.

use super::tag::{Look, Tag, look};

/// Text after a call is held back while it may still belong to the call's last value; beyond this many bytes it does
/// not.
pub(crate) const MAX_TAIL: usize = 16 << 10;

/// Whether a closer ends the value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// It does.
    Ends,
    /// It is part of the value.
    Inside,
    /// What follows decides.
    Wait,
}

/// Judges a `</parameter>` by the text after it; `last`: no more text comes.
pub(crate) fn after_parameter(rest: &str, last: bool) -> Verdict {
    let rest = rest.trim_ascii_start();
    match look(rest) {
        Look::Partial => wait(last),
        Look::Tag(Tag::ParameterOpen { .. } | Tag::CallOpen | Tag::FunctionOpen { .. }, _) => Verdict::Ends,
        Look::Tag(Tag::FunctionClose | Tag::CallClose, _) => after_function(rest, last),
        Look::Tag(Tag::ParameterClose, _) | Look::Other => Verdict::Inside,
    }
}

/// Judges closers of a function or a call, which `rest` begins with, by what follows them.
pub(crate) fn after_function(rest: &str, last: bool) -> Verdict {
    let (mut rest, mut closed) = (rest, false);
    while let Look::Tag(tag, len) = look(rest) {
        match tag {
            Tag::FunctionClose => {}
            Tag::CallClose => closed = true,
            // Everything closed twice.
            Tag::ParameterClose if closed => {}
            _ => break,
        }
        rest = rest[len..].trim_ascii_start();
    }
    match look(rest) {
        Look::Partial => return wait(last),
        Look::Tag(Tag::CallOpen | Tag::FunctionOpen { .. }, _) => return Verdict::Ends,
        Look::Tag(..) | Look::Other => {}
    }
    // Text follows. If it closes a parameter that no call in it opened, all of this was inside the value.
    let mut at = 0;
    while let Some(i) = rest[at..].find('<') {
        at += i;
        match look(&rest[at..]) {
            Look::Partial => return wait(last),
            Look::Tag(Tag::CallOpen | Tag::FunctionOpen { .. }, _) => return Verdict::Ends,
            Look::Tag(Tag::ParameterClose, len) => {
                match look(rest[at + len..].trim_ascii_start()) {
                    Look::Tag(Tag::FunctionClose | Tag::CallClose | Tag::ParameterOpen { .. }, _) => {
                        return Verdict::Inside;
                    }
                    Look::Partial if !last => return Verdict::Wait,
                    _ => {}
                }
                at += len;
            }
            Look::Tag(_, len) => at += len,
            Look::Other => at += 1,
        }
    }
    if rest.len() > MAX_TAIL { Verdict::Ends } else { wait(last) }
}

fn wait(last: bool) -> Verdict {
    if last { Verdict::Ends } else { Verdict::Wait }
}

/// Markup inside a value that opened and has not closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Open {
    Call,
    Function,
    Parameter,
}

/// What the search for a value's end came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Step {
    /// The value is `held[..end]`; the call goes on at `next`.
    End {
        /// End of the value.
        end: usize,
        /// After its closer.
        next: usize,
    },
    /// More text is needed; `held[..certain]` is part of the value in any case.
    More {
        /// Length of what is certain.
        certain: usize,
    },
}

/// Searches text that arrives in chunks for the end of a value.
#[derive(Debug, Default)]
pub(crate) struct ValueEnd {
    /// Searched so far.
    scanned: usize,
    /// Calls written inside the value: their closers are not the value's.
    open: Vec<Open>,
    /// Where the markup inside the value that is still in doubt began.
    doubt: Option<usize>,
    /// The search waits at a closer with plain text after it: only more markup can change that.
    idle: bool,
}

impl ValueEnd {
    /// Whether a chunk without markup cannot change what the last step said.
    pub(crate) fn is_idle(&self) -> bool {
        self.idle
    }

    /// The first `n` bytes of the text are gone.
    pub(crate) fn advance(&mut self, n: usize) {
        self.scanned -= n;
        self.doubt = self.doubt.map(|at| at - n);
    }

    /// Searches on in `held`, the value's text so far. `declared` tells whether a parameter of this name may come
    /// next.
    pub(crate) fn step(&mut self, held: &str, last: bool, declared: impl Fn(&str) -> bool) -> Step {
        self.idle = false;
        while let Some(i) = held[self.scanned..].find('<') {
            let at = self.scanned + i;
            self.settle(&held[..at]);
            let (tag, len) = match look(&held[at..]) {
                Look::Tag(tag, len) => (tag, len),
                Look::Partial if !last => {
                    self.scanned = at;
                    return self.more(at);
                }
                Look::Partial | Look::Other => {
                    self.scanned = at + 1;
                    self.settle(&held[..at + 1]);
                    continue;
                }
            };
            let next = at + len;
            let verdict = match tag {
                Tag::CallOpen => self.enter(Open::Call, at),
                Tag::FunctionOpen { .. } => self.enter(Open::Function, at),
                Tag::ParameterOpen { .. } if !self.open.is_empty() => self.enter(Open::Parameter, at),
                // The closer before it is missing.
                Tag::ParameterOpen { name } if declared(name) && held[..at].ends_with('\n') => {
                    return Step::End { end: at, next: at };
                }
                Tag::ParameterOpen { .. } => Verdict::Inside,
                Tag::ParameterClose if self.leave(Open::Parameter) => Verdict::Inside,
                Tag::ParameterClose => after_parameter(&held[next..], last),
                Tag::FunctionClose if self.leave(Open::Function) => Verdict::Inside,
                Tag::CallClose if self.leave(Open::Call) => Verdict::Inside,
                Tag::FunctionClose | Tag::CallClose => after_function(&held[at..], last),
            };
            match (verdict, tag) {
                (Verdict::Inside, _) => self.scanned = next,
                (Verdict::Ends, Tag::ParameterClose) => return Step::End { end: at, next },
                (Verdict::Ends, _) => return Step::End { end: at, next: at },
                (Verdict::Wait, _) => {
                    self.scanned = at;
                    // A tag that may be beginning must be looked at again.
                    let tail = &held[held.rfind('<').unwrap_or(0)..];
                    self.idle = !matches!(look(tail), Look::Partial) && !ends_in_closer(held);
                    return self.more(at);
                }
            }
        }
        self.scanned = held.len();
        self.settle(held);
        if last && let Some(end) = self.last_closer(held) {
            return end;
        }
        self.more(held.len())
    }

    fn more(&self, at: usize) -> Step {
        Step::More { certain: self.doubt.map_or(at, |doubt| doubt.min(at)) }
    }

    fn enter(&mut self, what: Open, at: usize) -> Verdict {
        self.open.push(what);
        self.doubt.get_or_insert(at);
        Verdict::Inside
    }

    /// Closes the innermost open one of this kind, with what is open in it.
    fn leave(&mut self, what: Open) -> bool {
        match self.open.iter().rposition(|&open| open == what) {
            Some(at) => {
                self.open.truncate(at);
                true
            }
            None => false,
        }
    }

    /// Markup that closed all it opened, and after which the value went on, was part of the value.
    fn settle(&mut self, text: &str) {
        if self.open.is_empty() && self.doubt.is_some() && !text.trim_ascii_end().ends_with('>') {
            self.doubt = None;
        }
    }

    /// The text is over and the value seems open: markup in it that was never closed took the value's closers for its
    /// own. The last `</parameter>` with nothing but closers after it ends the value.
    fn last_closer(&self, held: &str) -> Option<Step> {
        let from = self.doubt?;
        let at = from + held[from..].rfind("</parameter")?;
        let Look::Tag(Tag::ParameterClose, len) = look(&held[at..]) else { return None };
        let mut rest = held[at + len..].trim_ascii_start();
        let mut closers = 0;
        while let Look::Tag(Tag::FunctionClose | Tag::CallClose, len) = look(rest) {
            rest = rest[len..].trim_ascii_start();
            closers += 1;
        }
        (closers > 0 && rest.is_empty()).then_some(Step::End { end: at, next: at + len })
    }
}

/// Whether the text ends in a tag and blanks, so that plain text coming next would be news.
fn ends_in_closer(held: &str) -> bool {
    held.trim_ascii_end().ends_with('>')
}
