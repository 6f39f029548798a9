//! Any two files as tokenizer and its configuration: a tokenizer or an error, never a panic.
#![no_main]

use libfuzzer_sys::fuzz_target;
use lily_text::Tokenizer;

fuzz_target!(|input: (&[u8], Option<&[u8]>)| {
    let (tokenizer, config) = input;
    if let Ok(tokenizer) = Tokenizer::from_bytes(tokenizer, config)
        && let Ok(ids) = tokenizer.encode("a heron <think> \u{e9}")
    {
        let _ = tokenizer.decode(&ids, false);
    }
});
