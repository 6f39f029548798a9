//! Mixture of experts with a gated shared expert.
//!
//! ```text
//! e_1 .. e_k   the experts with the k largest router logits (lowest id first among equals)
//! s_i        = exp(l_i) / sum_j exp(l_j) over those k     = softmax over all, renormalised over the k
//! expert(x)  = down(silu(gate x) * up x)                  SwiGLU (Shazeer 2020, arXiv:2002.05202)
//! y          = sum_i s_i expert_i(x) + sigmoid(shared_expert_gate x) * shared_expert(x)
//! ```

use super::{linear::Linear, norm::softmax, sigmoid, silu};
use crate::{ModelConfig, weights::MoeWeights};

#[derive(Debug)]
pub(super) struct Moe {
    experts_per_token: usize,
    hidden: usize,
    gate: Linear,
    experts: SwiGlu,
    shared: SwiGlu,
    shared_expert_gate: Linear,
}

#[derive(Debug)]
struct SwiGlu {
    gate: Linear,
    up: Linear,
    down: Linear,
}

impl SwiGlu {
    fn apply(&self, expert: usize, x: &[f32]) -> Vec<f32> {
        let mut h = self.gate.apply(expert, x);
        for (h, up) in h.iter_mut().zip(self.up.apply(expert, x)) {
            *h = silu(*h) * up;
        }
        self.down.apply(expert, &h)
    }
}

impl Moe {
    pub(super) fn new(c: &ModelConfig, w: &MoeWeights, keep: bool) -> Self {
        let mlp = |gate, up, down| SwiGlu {
            gate: Linear::new(gate, keep),
            up: Linear::new(up, keep),
            down: Linear::new(down, keep),
        };
        Self {
            experts_per_token: c.num_experts_per_tok,
            hidden: c.hidden_size,
            gate: Linear::new(&w.gate, keep),
            experts: mlp(&w.experts_gate, &w.experts_up, &w.experts_down),
            shared: mlp(&w.shared_gate_proj, &w.shared_up_proj, &w.shared_down_proj),
            shared_expert_gate: Linear::new(&w.shared_expert_gate, keep),
        }
    }

    /// `x` and the result are `[tokens, hidden]`.
    pub(super) fn forward(&self, x: &[f32]) -> Vec<f32> {
        let mut y = Vec::with_capacity(x.len());
        for x in x.chunks_exact(self.hidden) {
            y.extend(self.token(x));
        }
        y
    }

    fn token(&self, x: &[f32]) -> Vec<f32> {
        let gate = sigmoid(self.shared_expert_gate.apply(0, x)[0]);
        let mut y: Vec<f32> = self.shared.apply(0, x).iter().map(|s| gate * s).collect();
        for (expert, score) in route(&self.gate.apply(0, x), self.experts_per_token) {
            for (y, e) in y.iter_mut().zip(self.experts.apply(expert, x)) {
                *y += score * e;
            }
        }
        y
    }
}

/// The `k` experts with the largest logits, best first, and their scores.
fn route(logits: &[f32], k: usize) -> Vec<(usize, f32)> {
    let mut ids: Vec<usize> = (0..logits.len()).collect();
    // The sort is stable, so equal logits stay in the order of their ids.
    ids.sort_by(|&a, &b| logits[b].total_cmp(&logits[a]));
    ids.truncate(k);
    let mut scores: Vec<f32> = ids.iter().map(|&i| logits[i]).collect();
    softmax(&mut scores);
    ids.into_iter().zip(scores).collect()
}

#[cfg(test)]
mod tests {
    use super::route;

    #[test]
    fn lowest_id_wins_ties() {
        let picked: Vec<usize> = route(&[1.0, 3.0, 2.0, 3.0, 2.0], 3).iter().map(|p| p.0).collect();
        assert_eq!(picked, [1, 3, 2]);
    }

    #[test]
    fn scores_are_the_renormalised_softmax() {
        let logits = [0.3f32, -1.0, 2.0, 0.7];
        let all: f32 = logits.iter().map(|l| l.exp()).sum();
        let picked = route(&logits, 2);
        let kept: f32 = picked.iter().map(|&(i, _)| logits[i].exp() / all).sum();
        for (i, score) in picked {
            assert!((score - logits[i].exp() / all / kept).abs() < 1e-6);
        }
    }
}
