//! Disjoint pieces of shared data, for threads that each write their own.

use std::{marker::PhantomData, ops::Range};

/// A pointer that may cross threads. The pool hands every index to one thread only.
pub(super) struct Raw<T>(pub *mut T);

impl<T> Clone for Raw<T> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<T> Copy for Raw<T> {}

// SAFETY: users go through `at` with indices that no other thread uses at the same time, and `T: Send` there.
unsafe impl<T> Sync for Raw<T> {}
// SAFETY: as above.
unsafe impl<T> Send for Raw<T> {}

impl<T> Raw<T> {
    /// The address of element `i`.
    ///
    /// # Safety
    /// `i` must be inside the allocation.
    #[inline]
    pub(super) unsafe fn at(self, i: usize) -> *mut T {
        // SAFETY: the caller's promise.
        unsafe { self.0.add(i) }
    }
}

/// A rectangle of a row-major f32 matrix, borrowed for writing. Made by [`grid`], whose rectangles never overlap.
pub struct BlockMut<'a> {
    ptr: *mut f32,
    stride: usize,
    /// First row in the matrix.
    pub row0: usize,
    /// First column in the matrix.
    pub col0: usize,
    rows: usize,
    cols: usize,
    marker: PhantomData<&'a mut [f32]>,
}

// SAFETY: a block is the only way to reach its elements while it lives, like the `&mut [f32]` it stands for.
unsafe impl Send for BlockMut<'_> {}
// SAFETY: a shared block can only be read.
unsafe impl Sync for BlockMut<'_> {}

impl BlockMut<'_> {
    /// Columns.
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// Rows.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Row `r` of the block.
    #[inline]
    pub fn row(&self, r: usize) -> &[f32] {
        assert!(r < self.rows);
        // SAFETY: `grid` made sure that the rectangle lies inside the matrix.
        unsafe { std::slice::from_raw_parts(self.ptr.add(r * self.stride), self.cols) }
    }

    /// Row `r` of the block.
    #[inline]
    pub fn row_mut(&mut self, r: usize) -> &mut [f32] {
        assert!(r < self.rows);
        // SAFETY: as above; no other block holds these elements, and `&mut self` keeps this one exclusive.
        unsafe { std::slice::from_raw_parts_mut(self.ptr.add(r * self.stride), self.cols) }
    }
}

/// Cuts a row-major matrix of `row_len` columns into the ranges of `rows` (ascending, disjoint) times pieces of
/// `col_chunk` columns (the last may be narrower). Blocks of the same rows follow one another.
pub fn grid<'a>(
    data: &'a mut [f32],
    row_len: usize,
    rows: &[Range<usize>],
    col_chunk: usize,
) -> Vec<BlockMut<'a>> {
    assert!(col_chunk > 0);
    let mut blocks = Vec::with_capacity(rows.len() * row_len.div_ceil(col_chunk));
    let mut free = 0;
    for r in rows {
        assert!(r.start >= free && r.end >= r.start, "row ranges must ascend");
        assert!(r.end.checked_mul(row_len).is_some_and(|n| n <= data.len()), "rows outside the matrix");
        free = r.end;
        for col0 in (0..row_len).step_by(col_chunk) {
            let cols = col_chunk.min(row_len - col0);
            // SAFETY: in range by the assertion above (an empty range may point one past the end).
            let ptr = unsafe { data.as_mut_ptr().add((r.start * row_len + col0).min(data.len())) };
            blocks.push(BlockMut {
                ptr,
                stride: row_len,
                row0: r.start,
                col0,
                rows: r.end - r.start,
                cols,
                marker: PhantomData,
            });
        }
    }
    blocks
}

/// Cuts a row-major matrix of `row_len` columns into pieces of `col_chunk` columns and all rows.
pub fn columns(data: &mut [f32], row_len: usize, col_chunk: usize) -> Vec<BlockMut<'_>> {
    let rows = data.len() / row_len;
    grid(data, row_len, std::slice::from_ref(&(0..rows)), col_chunk)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_grid_covers_each_element_once() {
        let mut data = vec![0.0f32; 7 * 10];
        for (i, mut b) in grid(&mut data, 10, &[0..3, 3..7], 4).into_iter().enumerate() {
            for r in 0..b.rows() {
                b.row_mut(r).iter_mut().for_each(|x| *x += 1.0 + i as f32);
            }
        }
        assert_eq!(data[0], 1.0);
        assert_eq!(data[9], 3.0);
        assert_eq!(data[30], 4.0);
        assert_eq!(data[69], 6.0);
        assert!(data.iter().all(|&x| x >= 1.0));
    }

    #[test]
    #[should_panic(expected = "ascend")]
    fn overlapping_rows_are_refused() {
        grid(&mut [0.0; 40], 10, &[0..2, 1..3], 4);
    }
}
