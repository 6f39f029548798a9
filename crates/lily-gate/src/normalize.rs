//! Other ways to read a text.

use base64::{
    Engine as _, alphabet, engine::DecodePaddingMode, engine::general_purpose::GeneralPurpose,
    engine::general_purpose::GeneralPurposeConfig,
};

/// The bytes of base64 text, of either alphabet, padded or not; none if it is not base64.
pub(crate) fn decode_base64(text: &[u8]) -> Option<Vec<u8>> {
    let config = GeneralPurposeConfig::new()
        .with_decode_padding_mode(DecodePaddingMode::Indifferent)
        .with_decode_allow_trailing_bits(true);
    let url = text.iter().any(|b| matches!(b, b'-' | b'_'));
    let alphabet = if url { &alphabet::URL_SAFE } else { &alphabet::STANDARD };
    GeneralPurpose::new(alphabet, config).decode(text).ok()
}
