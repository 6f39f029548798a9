//! One module a command.

pub mod chat;
pub mod check;
pub mod eval;
pub mod logits;
pub mod parse;
pub mod pull;
pub mod render;
pub mod run;
pub mod selftest;
pub mod serve;
pub mod tokenize;
