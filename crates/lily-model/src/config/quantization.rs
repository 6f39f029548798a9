//! The `quantization` block of `config.json`.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::{
    error::{CONVERT_AGAIN, ModelError},
    json::Field,
};

/// Elements that share a scale and a bias in every supported checkpoint.
pub const GROUP_SIZE: usize = 64;

/// Bit width and group size of every quantised module.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Quantization {
    /// For modules without an override: 4 or 8.
    pub bits: usize,
    /// Elements that share a scale and a bias: 64.
    pub group_size: usize,
    /// Bits of modules that differ, by full name (`language_model.model.layers.0.mlp.gate`).
    pub overrides: BTreeMap<String, usize>,
}

impl Quantization {
    /// What `mlx_lm.convert -q` gives this architecture: 4 bits, but 8 for routers and shared-expert gates.
    pub fn mlx_4bit(layers: usize) -> Self {
        let gates =
            |i| ["gate", "shared_expert_gate"].map(|g| format!("language_model.model.layers.{i}.mlp.{g}"));
        let overrides = (0..layers).flat_map(gates).map(|name| (name, 8)).collect();
        Self { bits: 4, group_size: GROUP_SIZE, overrides }
    }

    /// Bits of `module`.
    pub fn bits_of(&self, module: &str) -> usize {
        self.overrides.get(module).copied().unwrap_or(self.bits)
    }

    /// Reads `quantization` and `quantization_config`, which say the same.
    pub(crate) fn from_config(root: &Field) -> Result<Self, ModelError> {
        let (first, second) = (root.get("quantization"), root.get("quantization_config"));
        let block = if first.is_present() { &first } else { &second };
        if !block.is_present() {
            return Err(first.error_with("a block with bits 4 and group_size 64", CONVERT_AGAIN));
        }
        if first.is_present() && second.is_present() && first.value() != second.value() {
            return Err(second.error("the same content as quantization"));
        }
        let group_size = group_size(&block.get("group_size"))?;
        let bits = bits(&block.get("bits"))?;
        affine(&block.get("mode"))?;
        let mut overrides = BTreeMap::new();
        for (key, value) in block.object()? {
            // Other members are settings of the whole checkpoint; an override is an object or `false`.
            let module = block.get(key);
            match value {
                Value::Object(_) => {
                    // The vision tower is not loaded, so its precision does not matter.
                    if crate::checkpoint::is_vision(key) {
                        continue;
                    }
                    group_size_of_module(&module.get("group_size"), group_size)?;
                    affine(&module.get("mode"))?;
                    let at = module.get("bits");
                    overrides.insert(key.clone(), if at.is_present() { self::bits(&at)? } else { bits });
                }
                Value::Bool(false) if !crate::checkpoint::is_vision(key) => {
                    return Err(module.error_with("a quantised module", CONVERT_AGAIN));
                }
                _ => {}
            }
        }
        Ok(Self { bits, group_size, overrides })
    }
}

fn bits(field: &Field) -> Result<usize, ModelError> {
    match field.value().and_then(Value::as_u64) {
        Some(4) => Ok(4),
        Some(8) => Ok(8),
        _ => Err(field.error_with("4 or 8", CONVERT_AGAIN)),
    }
}

fn group_size(field: &Field) -> Result<usize, ModelError> {
    match field.value().and_then(Value::as_u64) {
        Some(64) => Ok(GROUP_SIZE),
        _ => Err(field.error_with("64", CONVERT_AGAIN)),
    }
}

fn group_size_of_module(field: &Field, default: usize) -> Result<usize, ModelError> {
    if field.is_present() { group_size(field) } else { Ok(default) }
}

fn affine(mode: &Field) -> Result<(), ModelError> {
    if mode.is_present() && mode.string()? != "affine" {
        return Err(mode.error_with("\"affine\"", CONVERT_AGAIN));
    }
    Ok(())
}
