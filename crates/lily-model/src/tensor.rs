//! Typed, shared views into tensor data that may live in a mapped file, in the binary, or in memory.

use std::{marker::PhantomData, ops::Deref, sync::Arc};

/// An 8-byte aligned, growable-once byte buffer for tensors that are made or copied in memory.
pub type OwnedWords = Vec<u64>;

/// Where a tensor's bytes live. Views keep it alive through an [`Arc`].
#[derive(Debug)]
pub enum Storage {
    /// A read-only mapping of a safetensors file.
    Mapped(memmap2::Mmap),
    /// Anonymous pages: large synthetic tensors.
    Anonymous(memmap2::Mmap),
    /// Bytes inside the executable (the embedded model).
    Static(&'static [u8]),
    /// Bytes in memory: small tensors made by us, and tensors copied because their file offset was misaligned.
    Owned(OwnedWords),
}

impl Storage {
    /// The whole storage as bytes.
    pub fn bytes(&self) -> &[u8] {
        match self {
            Storage::Mapped(m) | Storage::Anonymous(m) => m,
            Storage::Static(b) => b,
            Storage::Owned(v) => bytemuck::cast_slice(v),
        }
    }
}

/// A typed slice of a [`Storage`]: `u32` for packed weights, `u16` for BF16 bit patterns, `f32`.
///
/// Cheap to clone. Dereferences to `[T]`.
#[derive(Debug, Clone)]
pub struct TensorData<T> {
    storage: Arc<Storage>,
    byte_offset: usize,
    len: usize,
    marker: PhantomData<T>,
}

impl<T: bytemuck::Pod> TensorData<T> {
    /// A view of `len` elements starting `byte_offset` bytes into `storage`. When the address is not aligned
    /// for `T` the bytes are copied into memory of their own. `None` when the range leaves the storage.
    pub fn new(storage: &Arc<Storage>, byte_offset: usize, len: usize) -> Option<Self> {
        let byte_len = len.checked_mul(size_of::<T>())?;
        let bytes = storage.bytes().get(byte_offset..byte_offset.checked_add(byte_len)?)?;
        if bytemuck::try_cast_slice::<u8, T>(bytes).is_ok() {
            return Some(Self { storage: storage.clone(), byte_offset, len, marker: PhantomData });
        }
        Some(Self::from_bytes_copied(bytes, len))
    }

    /// A view of a copy of `values`.
    pub fn from_slice(values: &[T]) -> Self {
        Self::from_bytes_copied(bytemuck::cast_slice(values), values.len())
    }

    fn from_bytes_copied(bytes: &[u8], len: usize) -> Self {
        let mut words: OwnedWords = vec![0; bytes.len().div_ceil(8)];
        bytemuck::cast_slice_mut::<u64, u8>(&mut words)[..bytes.len()].copy_from_slice(bytes);
        Self { storage: Arc::new(Storage::Owned(words)), byte_offset: 0, len, marker: PhantomData }
    }

    /// The elements.
    pub fn as_slice(&self) -> &[T] {
        let end = self.byte_offset + self.len * size_of::<T>();
        // The constructor checked range and alignment, and storages never change.
        bytemuck::cast_slice(&self.storage.bytes()[self.byte_offset..end])
    }

    /// Where the bytes live, for devices that use a whole storage in place.
    pub fn storage(&self) -> &Arc<Storage> {
        &self.storage
    }

    /// Bytes from the storage's start to the first element.
    pub fn byte_offset(&self) -> usize {
        self.byte_offset
    }

    /// Whether the bytes live in a mapped file or in the executable, so that they cost no memory of our own.
    pub fn is_borrowed(&self) -> bool {
        matches!(*self.storage, Storage::Mapped(_) | Storage::Static(_))
    }
}

impl<T: bytemuck::Pod> Deref for TensorData<T> {
    type Target = [T];
    fn deref(&self) -> &[T] {
        self.as_slice()
    }
}
