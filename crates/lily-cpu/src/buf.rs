//! Cache-line aligned buffers.

use std::{
    marker::PhantomData,
    ops::{Deref, DerefMut},
};

use crate::error::{CpuError, Result};

/// One cache line, the unit of alignment.
#[derive(Debug, Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C, align(64))]
struct Line([u8; 64]);

/// A zeroed, 64-byte aligned buffer of `T`. Dereferences to `[T]`.
#[derive(Debug, Clone)]
pub struct Buf<T> {
    lines: Vec<Line>,
    len: usize,
    marker: PhantomData<T>,
}

impl<T: bytemuck::Pod> Buf<T> {
    /// `len` zeros; `what` names the buffer in the error when there is no memory for it.
    pub fn new(len: usize, what: &'static str) -> Result<Self> {
        let bytes =
            len.checked_mul(size_of::<T>()).ok_or(CpuError::OutOfMemory { asked: usize::MAX, what })?;
        let n = bytes.div_ceil(64);
        let mut lines = Vec::new();
        lines.try_reserve_exact(n).map_err(|_| CpuError::OutOfMemory { asked: bytes, what })?;
        lines.resize(n, Line([0; 64]));
        Ok(Self { lines, len, marker: PhantomData })
    }

    /// Bytes held.
    pub fn byte_len(&self) -> usize {
        self.lines.len() * 64
    }
}

impl<T: bytemuck::Pod> Deref for Buf<T> {
    type Target = [T];
    #[inline]
    fn deref(&self) -> &[T] {
        &bytemuck::cast_slice(&self.lines)[..self.len]
    }
}

impl<T: bytemuck::Pod> DerefMut for Buf<T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut [T] {
        &mut bytemuck::cast_slice_mut(&mut self.lines)[..self.len]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn aligned_and_zero() {
        let b = Buf::<f32>::new(37, "test").unwrap();
        assert_eq!(b.as_ptr() as usize % 64, 0);
        assert_eq!(b.len(), 37);
        assert!(b.iter().all(|&x| x == 0.0));
    }

    #[test]
    fn too_large_is_an_error() {
        assert!(matches!(Buf::<f32>::new(usize::MAX / 8, "test"), Err(CpuError::OutOfMemory { .. })));
        assert!(matches!(Buf::<f32>::new(usize::MAX, "test"), Err(CpuError::OutOfMemory { .. })));
    }
}
