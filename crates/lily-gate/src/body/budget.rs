//! What a session has given away so far, and whether one more request is too much.

use std::collections::HashSet;

use super::{Gate, Inbound, mask::Marked};
use crate::{
    Field, hash,
    policy::Action,
    vault::{Vault, key_form},
};

impl Gate {
    /// Why this request would be beyond its session's budget; none if it is not. Looks only: nothing is spent.
    pub(super) fn over_budget(
        &self,
        inbound: Inbound,
        fields: &[Field],
        marked: &[Vec<Marked>],
    ) -> Option<String> {
        let budget = &self.policy.budget;
        let vault = self.vaults.peek(&self.session(inbound), self.policy.session_ttl());
        // A vault that broke is replaced by an empty one later; nothing is known of its session then.
        let vault = vault.as_ref().and_then(|vault| vault.lock().ok());
        let print = |value: &str| match &vault {
            Some(vault) => vault.fingerprint(value),
            None => hash::hmac(&self.process_key, &[key_form(value).as_bytes()]),
        };
        let spent = vault.as_ref().map(|vault| vault.spent()).unwrap_or_default();
        let mut values = HashSet::new();
        let mut clear = HashSet::new();
        for (value, action) in found(fields, marked) {
            let known = vault.as_ref().is_some_and(|v| v.known(value).is_some());
            match action {
                Action::Allow if !vault.as_ref().is_some_and(|v| v.was_clear(value)) => {
                    clear.insert(print(value));
                }
                Action::Allow => {}
                _ if !known => {
                    values.insert(print(value));
                }
                _ => {}
            }
        }
        let counts = [
            (spent.values + values.len() as u64, budget.values, "values masked"),
            (spent.clear + clear.len() as u64, budget.clear, "values in clear"),
            ((spent.bytes + size(inbound)).div_ceil(1024), budget.kib, "KiB sent"),
        ];
        let (would, most, what) = counts.into_iter().find(|(would, most, _)| would > most)?;
        Some(format!("the session's disclosure budget: with this request {would} {what}, at most {most}"))
    }
}

/// Books what a request gives away. `renew`: it was let out beyond the budget, which begins anew with it.
///
/// Requests of one session that are looked at together are each compared with what was booked before them.
pub(super) fn spend(
    vault: &mut Vault,
    inbound: Inbound,
    fields: &[Field],
    marked: &[Vec<Marked>],
    renew: bool,
) {
    if renew {
        vault.renew_budget();
    }
    let clear = found(fields, marked).filter(|(_, action)| *action == Action::Allow);
    vault.spend(size(inbound), clear.map(|(value, _)| value));
}

/// Everything found, with what is done with it.
fn found<'a>(fields: &'a [Field], marked: &'a [Vec<Marked>]) -> impl Iterator<Item = (&'a str, Action)> {
    fields.iter().zip(marked).flat_map(|(field, marked)| {
        marked.iter().filter_map(|m| Some((field.text.get(m.span.range.clone())?, m.action)))
    })
}

/// Bytes of the request as the client sent it.
fn size(inbound: Inbound) -> u64 {
    inbound.request.to_string().len() as u64
}
