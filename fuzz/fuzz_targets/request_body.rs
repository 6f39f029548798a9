//! Any body to any endpoint: it is accepted, or refused with a client error that says why.
#![no_main]

use libfuzzer_sys::fuzz_target;
use lily_server::check_body;

fuzz_target!(|input: (u8, &[u8])| {
    let (which, body) = input;
    let paths = ["/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages"];
    if let Err(error) = check_body(paths[usize::from(which) % paths.len()], body) {
        assert!(error.status.is_client_error() && !error.message.is_empty());
    }
});
