//! Random content made on the GPU: 20 GB of weights in milliseconds.

use super::{CudaDevice, driver::Shape, failed};
use crate::{
    device::{Device, Region},
    error::Result,
    synthetic::Content,
};

/// `FillArgs` of synthetic.cu.
#[repr(C)]
#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
struct FillArgs {
    to: u64,
    count: u64,
    seed: u64,
    kind: u32,
    low: f32,
    high: f32,
    table: [u16; 16],
    end: u32,
}

impl CudaDevice {
    /// Fills memory; the same bytes as [`Content::fill`] makes on the host.
    pub fn fill(&mut self, region: Region, content: &Content) -> Result<()> {
        let to = self.address(region.buffer, region.offset, region.len)?;
        let args = FillArgs { to, count: 0, seed: 0, kind: 0, low: 0.0, high: 0.0, table: [0; 16], end: 0 };
        let (args, unit) = match content {
            Content::Bytes(bytes) => {
                self.zero(region)?;
                let n = bytes.len().min(region.len as usize);
                return self.write(region.buffer, region.offset, &bytes[..n]);
            }
            Content::Words { seed } => (FillArgs { seed: *seed, ..args }, 8),
            Content::Picks { seed, table } => (FillArgs { kind: 1, seed: *seed, table: *table, ..args }, 2),
            Content::Floats { seed, low, high } => {
                (FillArgs { kind: 2, seed: *seed, low: *low, high: *high, ..args }, 4)
            }
            Content::Bfloats { seed, low, high } => {
                (FillArgs { kind: 3, seed: *seed, low: *low, high: *high, ..args }, 2)
            }
        };
        if !region.len.is_multiple_of(unit) {
            return Err(failed(format!("{} bytes cannot be filled with elements of {unit}", region.len)));
        }
        let Some(&function) = self.native.get("native_fill") else {
            let mut bytes = vec![0; region.len as usize];
            content.fill(&mut bytes);
            return self.write(region.buffer, region.offset, &bytes);
        };
        let args = FillArgs { count: region.len / unit, ..args };
        let blocks = args.count.div_ceil(256).clamp(1, 8 * self.limits.multiprocessors as u64) as u32;
        let shape = Shape { grid: [blocks, 1, 1], block: [256, 1, 1], shared: 0, early: false };
        // SAFETY: the structure is the kernel's (compared in tests); the range was checked.
        unsafe { self.driver.launch(function, &shape, &[bytemuck::bytes_of(&args)]) }?;
        self.driver.sync(self.driver.main)
    }
}
