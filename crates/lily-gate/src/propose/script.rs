//! A proposer that does as told: for tests of everything that a model may do wrong.

use std::{
    thread,
    time::{Duration, Instant},
};

use super::{Item, ItemType, Proposal, ProposedVerdict, Proposer, Reason};

/// A fault to play.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// None.
    None,
    /// An error at once.
    Unavailable,
    /// An answer that comes too late.
    Slow(Duration),
    /// A panic.
    Panic,
    /// Text that is no JSON.
    Garbage,
    /// JSON that stops in the middle.
    Truncated,
    /// A value that is not in the text.
    Invented,
    /// More values than the policy lets it name.
    TooMany,
    /// The planted values are not named.
    Asleep,
}

/// Names the listed values wherever they are, and the planted ones.
#[derive(Debug, Clone)]
pub struct ScriptedProposer {
    /// Values to name where the text holds them.
    pub values: Vec<(ItemType, String)>,
    /// Texts that make a message stay, and why.
    pub topics: Vec<(String, Reason)>,
    /// What goes wrong.
    pub fault: Fault,
}

impl ScriptedProposer {
    /// Names these values.
    pub fn new(values: &[(ItemType, &str)]) -> Self {
        Self {
            values: values.iter().map(|(t, v)| (*t, (*v).to_owned())).collect(),
            topics: Vec::new(),
            fault: Fault::None,
        }
    }

    /// With a fault.
    pub fn failing(fault: Fault) -> Self {
        Self { fault, ..Self::new(&[]) }
    }
}

impl Proposer for ScriptedProposer {
    fn digest(&self) -> String {
        format!("scripted {:?} {:?} {:?}", self.values, self.topics, self.fault)
    }

    fn propose(&self, text: &str, _deadline: Instant) -> Result<String, String> {
        match self.fault {
            Fault::Unavailable => return Err("no model is loaded".into()),
            Fault::Panic => panic!("a fault was asked for"),
            Fault::Garbage => return Ok("I found nothing private.".into()),
            Fault::Slow(time) => thread::sleep(time),
            _ => {}
        }
        let mut items: Vec<Item> = Vec::new();
        let mut name = |t: ItemType, v: &str| items.push(Item { t, v: v.to_owned() });
        if self.fault != Fault::Asleep {
            // The planted values stand in the first and the last line.
            let person = text.lines().next().and_then(|l| l.strip_prefix("Contact: "));
            let address = text.lines().last().and_then(|l| l.strip_prefix("Delivered to "));
            name(ItemType::Person, person.unwrap_or_default());
            name(ItemType::Address, address.unwrap_or_default().trim_end_matches('.'));
        }
        for (t, v) in self.values.iter().filter(|(_, v)| text.contains(v.as_str())) {
            name(*t, v);
        }
        if self.fault == Fault::Invented {
            name(ItemType::Person, "Nobody Whatsoever");
        }
        if self.fault == Fault::TooMany {
            (0..2000).for_each(|_| name(ItemType::Other, "Contact"));
        }
        let topic = self.topics.iter().find(|(needle, _)| text.contains(needle.as_str()));
        let verdict = if topic.is_some() { ProposedVerdict::Local } else { ProposedVerdict::Mask };
        let proposal = Proposal { verdict, reason: topic.map_or(Reason::None, |(_, r)| *r), items };
        let mut answer = serde_json::to_string(&proposal).map_err(|e| e.to_string())?;
        if self.fault == Fault::Truncated {
            answer.truncate(answer.len() / 2);
        }
        Ok(answer)
    }
}
