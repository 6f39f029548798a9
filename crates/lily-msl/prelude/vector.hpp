// Vectors: float4 and its kin, with swizzles, conversions and operators.
namespace metal {

template <class T, int N> struct vec;
template <class T, int N> struct packed_vec;

// The components A, B, C, D of a vector of S, as a vector of N. LILY_SWIZZLES2 to 4 declare one of these a name:
// every selection of two and three, and the selections of four that are permutations or repeat one component.
template <class T, int N, int A, int B, int C, int D, int S> struct swizzle {
  T v[S];
  static constexpr int at(int i) { return i == 0 ? A : i == 1 ? B : i == 2 ? C : D; }
  LILY_FN vec<T, N> get() const {
    vec<T, N> r;
    for (int i = 0; i < N; i++) r.v[i] = v[at(i)];
    return r;
  }
  LILY_FN operator vec<T, N>() const { return get(); }
  LILY_FN swizzle& operator=(const vec<T, N>& o) {
    for (int i = 0; i < N; i++) v[at(i)] = o.v[i];
    return *this;
  }
  LILY_FN swizzle& operator=(const swizzle& o) { return *this = o.get(); }
  LILY_FN T operator[](int i) const { return v[at(i)]; }
};

template <class T, int N> struct vec_storage;
template <class T> struct alignas(sizeof(T) * 2) vec_storage<T, 2> {
  union {
    T v[2];
    struct { T x, y; };
    LILY_SWIZZLES2
  };
};
template <class T> struct alignas(sizeof(T) * 4) vec_storage<T, 3> {
  union {
    T v[3];
    struct { T x, y, z; };
    LILY_SWIZZLES3
  };
};
template <class T> struct alignas(sizeof(T) * 4) vec_storage<T, 4> {
  union {
    T v[4];
    struct { T x, y, z, w; };
    LILY_SWIZZLES4
  };
};

// Conversion between numbers; half and bfloat convert to each other only through this.
template <class T, class U> LILY_FN constexpr T convert(U u) { return T(u); }

// Number of components of a vector or swizzle, 0 for anything else, and their type.
template <class X> struct vec_info { static constexpr int n = 0; };
template <class T, int N> struct vec_info<vec<T, N>> {
  static constexpr int n = N;
  typedef T element;
};
template <class T, int N, int A, int B, int C, int D, int S> struct vec_info<swizzle<T, N, A, B, C, D, S>> {
  static constexpr int n = N;
  typedef T element;
};
template <class X> using is_vector = enable_if_t<(vec_info<X>::n > 0)>;
template <class T, int N> LILY_FN const vec<T, N>& as_vec(const vec<T, N>& v) { return v; }
template <class T, int N, int A, int B, int C, int D, int S>
LILY_FN vec<T, N> as_vec(const swizzle<T, N, A, B, C, D, S>& v) {
  return v.get();
}

// Lays the parts of a constructor's arguments one after the other.
template <class T, class U, class = enable_if_t<is_arithmetic_v<U>>> LILY_FN constexpr int put(T* d, int i, U s) {
  d[i] = convert<T>(s);
  return i + 1;
}
template <class T, int M> LILY_FN constexpr int put(T* d, int i, const vec<T, M>& s) {
  for (int k = 0; k < M; k++) d[i + k] = s.v[k];
  return i + M;
}
template <class T, int M, int A, int B, int C, int D, int S>
LILY_FN constexpr int put(T* d, int i, const swizzle<T, M, A, B, C, D, S>& s) {
  return put(d, i, s.get());
}
template <class U> struct part { static constexpr int n = vec_info<U>::n ? vec_info<U>::n : 1; };

template <class T, int N> struct vec : vec_storage<T, N> {
  vec() = default;
  vec(const vec&) = default;
  LILY_FN vec& operator=(const vec& o) {
    for (int i = 0; i < N; i++) this->v[i] = o.v[i];
    return *this;
  }
  template <class U, class = enable_if_t<is_arithmetic_v<U>>>
  LILY_FN constexpr vec(U s) : vec_storage<T, N>{} {
    for (int i = 0; i < N; i++) this->v[i] = convert<T>(s);
  }
  template <class U, class = enable_if_t<!is_same_v<U, T>>, class = void>
  LILY_FN explicit vec(const vec<U, N>& o) {
    for (int i = 0; i < N; i++) this->v[i] = convert<T>(o.v[i]);
  }
  template <class U, int A, int B, int C, int D, int S, class = enable_if_t<!is_same_v<U, T>>>
  LILY_FN explicit vec(const swizzle<U, N, A, B, C, D, S>& o) : vec(o.get()) {}
  template <class P, class Q, class... R>
  LILY_FN constexpr vec(const P& p, const Q& q, const R&... r) : vec_storage<T, N>{} {
    static_assert(part<P>::n + part<Q>::n + (0 + ... + part<R>::n) == N, "a vector's parts must fill it exactly");
    int i = put(this->v, 0, p);
    i = put(this->v, i, q);
    ((i = put(this->v, i, r)), ...);
  }
  template <class U> LILY_FN explicit vec(const packed_vec<U, N>& o) {
    for (int i = 0; i < N; i++) this->v[i] = convert<T>(o.v[i]);
  }
  LILY_FN T& operator[](int i) { return this->v[i]; }
  LILY_FN const T& operator[](int i) const { return this->v[i]; }
};

// Vectors in memory without padding and with the alignment of their element.
template <class T, int N> struct packed_vec {
  T v[N];
  packed_vec() = default;
  LILY_FN packed_vec(const vec<T, N>& o) {
    for (int i = 0; i < N; i++) v[i] = o.v[i];
  }
  LILY_FN operator vec<T, N>() const {
    vec<T, N> r;
    for (int i = 0; i < N; i++) r.v[i] = v[i];
    return r;
  }
  LILY_FN T& operator[](int i) { return v[i]; }
  LILY_FN const T& operator[](int i) const { return v[i]; }
};

#define LILY_VECTORS(T)                                                                        \
  typedef vec<T, 2> T##2;                                                                      \
  typedef vec<T, 3> T##3;                                                                      \
  typedef vec<T, 4> T##4;                                                                      \
  typedef packed_vec<T, 2> packed_##T##2;                                                      \
  typedef packed_vec<T, 3> packed_##T##3;                                                      \
  typedef packed_vec<T, 4> packed_##T##4;
LILY_VECTORS(float) LILY_VECTORS(half) LILY_VECTORS(bfloat) LILY_VECTORS(bool) LILY_VECTORS(char)
LILY_VECTORS(uchar) LILY_VECTORS(short) LILY_VECTORS(ushort) LILY_VECTORS(int) LILY_VECTORS(uint)
LILY_VECTORS(long) LILY_VECTORS(ulong)
#undef LILY_VECTORS

// ---- operators: component by component; a scalar operand takes the vector's element type

template <class A, class B> using same_length = enable_if_t<(vec_info<A>::n > 0 && vec_info<A>::n == vec_info<B>::n)>;
template <class V, class S> using vector_scalar = enable_if_t<(vec_info<V>::n > 0 && is_arithmetic_v<S>)>;
// Numbers the overloads below, whose default arguments do not tell them apart.
template <int> struct form {};

#define LILY_VECTOR_OP(op)                                                                     \
  template <class A, class B, class = same_length<A, B>> LILY_FN auto operator op(const A& a, const B& b) { \
    typedef typename vec_info<A>::element T;                                                   \
    static_assert(is_same_v<T, typename vec_info<B>::element>, "vectors of an operation must have one element type"); \
    vec<T, vec_info<A>::n> r;                                                                  \
    auto&& x = as_vec(a);                                                                      \
    auto&& y = as_vec(b);                                                                      \
    for (int i = 0; i < vec_info<A>::n; i++) r.v[i] = T(x.v[i] op y.v[i]);                     \
    return r;                                                                                  \
  }                                                                                            \
  template <class A, class S, class = vector_scalar<A, S>, class = form<1>>                    \
  LILY_FN auto operator op(const A& a, S s) {                                                  \
    typedef typename vec_info<A>::element T;                                                   \
    vec<T, vec_info<A>::n> r;                                                                  \
    auto&& x = as_vec(a);                                                                      \
    T y = convert<T>(s);                                                                       \
    for (int i = 0; i < vec_info<A>::n; i++) r.v[i] = T(x.v[i] op y);                          \
    return r;                                                                                  \
  }                                                                                            \
  template <class S, class A, class = vector_scalar<A, S>, class = form<1>, class = form<2>>   \
  LILY_FN auto operator op(S s, const A& a) {                                                  \
    typedef typename vec_info<A>::element T;                                                   \
    vec<T, vec_info<A>::n> r;                                                                  \
    auto&& x = as_vec(a);                                                                      \
    T y = convert<T>(s);                                                                       \
    for (int i = 0; i < vec_info<A>::n; i++) r.v[i] = T(y op x.v[i]);                          \
    return r;                                                                                  \
  }                                                                                            \
  template <class T, int N, class B> LILY_FN vec<T, N>& operator op##=(vec<T, N>& a, const B& b) { \
    a = a op b;                                                                                \
    return a;                                                                                  \
  }                                                                                            \
  template <class T, int N, int I, int J, int K, int L, int S, class B>                        \
  LILY_FN swizzle<T, N, I, J, K, L, S>& operator op##=(swizzle<T, N, I, J, K, L, S>& a, const B& b) { \
    a = a.get() op b;                                                                          \
    return a;                                                                                  \
  }
LILY_VECTOR_OP(+) LILY_VECTOR_OP(-) LILY_VECTOR_OP(*) LILY_VECTOR_OP(/) LILY_VECTOR_OP(%)
LILY_VECTOR_OP(&) LILY_VECTOR_OP(|) LILY_VECTOR_OP(^) LILY_VECTOR_OP(<<) LILY_VECTOR_OP(>>)
#undef LILY_VECTOR_OP

#define LILY_VECTOR_COMPARE(op)                                                                \
  template <class A, class B, class = same_length<A, B>> LILY_FN auto operator op(const A& a, const B& b) { \
    vec<bool, vec_info<A>::n> r;                                                               \
    auto&& x = as_vec(a);                                                                      \
    auto&& y = as_vec(b);                                                                      \
    for (int i = 0; i < vec_info<A>::n; i++) r.v[i] = x.v[i] op y.v[i];                        \
    return r;                                                                                  \
  }                                                                                            \
  template <class A, class S, class = vector_scalar<A, S>, class = form<1>>                    \
  LILY_FN auto operator op(const A& a, S s) {                                                  \
    vec<bool, vec_info<A>::n> r;                                                               \
    auto&& x = as_vec(a);                                                                      \
    for (int i = 0; i < vec_info<A>::n; i++) r.v[i] = x.v[i] op s;                             \
    return r;                                                                                  \
  }
LILY_VECTOR_COMPARE(==) LILY_VECTOR_COMPARE(!=) LILY_VECTOR_COMPARE(<) LILY_VECTOR_COMPARE(>)
LILY_VECTOR_COMPARE(<=) LILY_VECTOR_COMPARE(>=)
#undef LILY_VECTOR_COMPARE

#define LILY_VECTOR_UNARY(op)                                                                  \
  template <class A, class = is_vector<A>> LILY_FN auto operator op(const A& a) {              \
    typedef typename vec_info<A>::element T;                                                   \
    vec<T, vec_info<A>::n> r;                                                                  \
    auto&& x = as_vec(a);                                                                      \
    for (int i = 0; i < vec_info<A>::n; i++) r.v[i] = T(op x.v[i]);                            \
    return r;                                                                                  \
  }
LILY_VECTOR_UNARY(-) LILY_VECTOR_UNARY(~) LILY_VECTOR_UNARY(!)
#undef LILY_VECTOR_UNARY

template <int N> LILY_FN vec<bool, N> operator&&(const vec<bool, N>& a, const vec<bool, N>& b) { return a & b; }
template <int N> LILY_FN vec<bool, N> operator||(const vec<bool, N>& a, const vec<bool, N>& b) { return a | b; }
template <int N> LILY_FN bool all(const vec<bool, N>& a) {
  for (int i = 0; i < N; i++)
    if (!a.v[i]) return false;
  return true;
}
template <int N> LILY_FN bool any(const vec<bool, N>& a) {
  for (int i = 0; i < N; i++)
    if (a.v[i]) return true;
  return false;
}

template <class T, size_t N> struct array {
  T elements[N];
  LILY_FN T& operator[](size_t i) { return elements[i]; }
  LILY_FN const T& operator[](size_t i) const { return elements[i]; }
  static constexpr size_t size() { return N; }
};

} // namespace metal
