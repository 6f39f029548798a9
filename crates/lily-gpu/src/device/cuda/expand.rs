//! What expanding a model's matrices in memory would cost: for measuring only.

use super::{CudaDevice, driver::Shape, failed, profile::median};
use crate::{device::Region, error::Result};

/// A quantised matrix in memory.
#[derive(Debug, Clone, Copy)]
pub struct PackedMatrix {
    /// Codes.
    pub codes: Region,
    /// Scales.
    pub scales: Region,
    /// Biases.
    pub biases: Region,
    /// 4 or 8.
    pub bits: u32,
}

/// `ExpandArgs` of expand.cu.
#[repr(C)]
#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
struct ExpandArgs {
    codes: u64,
    scales: u64,
    biases: u64,
    out: u64,
    words: u64,
    bits: u32,
    end: u32,
}

impl CudaDevice {
    /// Milliseconds, median of `repeats`, that it takes to expand all of these matrices to BF16, one after the other into
    /// `out`, which must hold the largest.
    pub fn time_expanding(&mut self, matrices: &[PackedMatrix], out: Region, repeats: usize) -> Result<f64> {
        let &function = self
            .native
            .get("native_expand")
            .ok_or_else(|| failed("expanding needs the native kernels (compute capability 9.0)".into()))?;
        let to = self.address(out.buffer, out.offset, out.len)?;
        let mut launches = Vec::new();
        for m in matrices {
            if !matches!(m.bits, 4 | 8) {
                return Err(failed(format!("{} bits cannot be expanded", m.bits)));
            }
            let elements = m.codes.len * 8 / m.bits as u64;
            let groups = elements / 64 * 2;
            if elements * 2 > out.len || m.scales.len < groups || m.biases.len < groups {
                return Err(failed(format!(
                    "expanding {elements} elements into {} bytes with {} bytes of scales",
                    out.len, m.scales.len
                )));
            }
            launches.push(ExpandArgs {
                codes: self.address(m.codes.buffer, m.codes.offset, m.codes.len)?,
                scales: self.address(m.scales.buffer, m.scales.offset, groups)?,
                biases: self.address(m.biases.buffer, m.biases.offset, groups)?,
                out: to,
                words: m.codes.len / 4,
                bits: m.bits,
                end: 0,
            });
        }
        let limit = 16 * self.limits.multiprocessors as u64;
        let (from, until) = (self.driver.event()?, self.driver.event()?);
        let mut times = Vec::new();
        for _ in 0..repeats.max(1) {
            self.driver.mark(&from)?;
            for l in &launches {
                let blocks = l.words.div_ceil(256).clamp(1, limit) as u32;
                let shape = Shape { grid: [blocks, 1, 1], block: [256, 1, 1], shared: 0, early: false };
                // SAFETY: the structure is the kernel's; all ranges were checked.
                unsafe { self.driver.launch(function, &shape, &[bytemuck::bytes_of(l)]) }?;
            }
            self.driver.mark(&until)?;
            self.driver.wait(&until)?;
            times.push(self.driver.elapsed(&from, &until)? as f64);
        }
        Ok(median(&mut times))
    }
}
