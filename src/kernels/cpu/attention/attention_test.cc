// The bit-equalities that make the CPU's attention batch-invariant. Cases against the reference: kernels/cases.
#include "kernels/cases/tensors.h"
#include "kernels/cpu/matmul/matmul.h"

namespace sinter::kernels {
namespace {

using namespace testing;  // NOLINT

// Sequences end to end, then padding rows. `cached` keys precede each sequence's tokens when given.
RaggedBatch make_batch(const std::vector<int64_t>& queries, int64_t padding, const std::vector<int64_t>& cached = {}) {
  RaggedBatch batch;
  std::vector<int32_t> offsets{0}, contexts;
  for (size_t s = 0; s < queries.size(); ++s) {
    int64_t context = queries[s] + (cached.empty() ? 0 : cached[s]);
    offsets.push_back(offsets.back() + static_cast<int32_t>(queries[s]));
    contexts.push_back(static_cast<int32_t>(context));
    batch.max_query = std::max(batch.max_query, queries[s]);
    batch.max_context = std::max(batch.max_context, context);
  }
  batch.num_sequences = static_cast<int64_t>(queries.size());
  batch.num_tokens = offsets.back() + padding;
  batch.offsets = int_tensor(offsets);
  batch.contexts = int_tensor(contexts);
  return batch;
}

int64_t width_of(const AttentionShape& shape) { return (shape.num_heads + 2 * shape.num_kv_heads) * shape.head_dim; }

AttentionShape make_shape(int64_t heads, int64_t kv_heads, int64_t dim, int64_t window = 0, float dropout = 0) {
  return {.num_heads = heads,
          .num_kv_heads = kv_heads,
          .head_dim = dim,
          .window = window,
          .scale = 1.0f / std::sqrt(static_cast<float>(dim)),
          .dropout = dropout,
          .key = {21, 22}};
}

struct ForwardResult {
  Tensor out, lse;
};

ForwardResult forward(const KernelTable& table, const AttentionShape& shape, const RaggedBatch& batch,
                      const Tensor& qkv) {
  ForwardResult r{empty_tensor({batch.num_tokens, shape.num_heads * shape.head_dim}, qkv.dtype()),
                  empty_tensor({shape.num_heads, batch.num_tokens}, DType::f32)};
  table.attention_forward(stream(), {.shape = shape, .batch = &batch, .qkv = qkv, .out = r.out, .lse = r.lse});
  return r;
}

// A sequence's rows are the same bits alone, in any batch, and whatever follows them.
TEST(CpuAttention, ARowDoesNotDependOnTheBatch) {
  for (const Format& format : kFormats) {
    for (const AttentionShape& shape : {make_shape(4, 2, 64), make_shape(3, 3, 80, 37)}) {
      RaggedBatch batch = make_batch({45, 150, 12}, 0);
      Tensor qkv = random_tensor({batch.num_tokens, width_of(shape)}, format.dtype, 1);
      Tensor together = forward(*cpu_table(), shape, batch, qkv).out;
      for (int64_t length : {1, 64, 77, 150}) {  // the middle sequence, cut short
        RaggedBatch alone = make_batch({length}, 0);
        Tensor out = forward(*cpu_table(), shape, alone, qkv.slice(45, length)).out;
        EXPECT_TRUE(bit_equal(out, together.slice(45, length)))
            << base::dtype_name(format.dtype) << ", " << length << " rows";
      }
    }
  }
}

// Keys and values of all sequences in cache blocks, in a scattered order; unused slots hold NaN.
struct PagedKeys {
  Tensor keys, values, block_tables;
};

PagedKeys make_paged(const AttentionShape& shape, const std::vector<int64_t>& contexts, int64_t block_size,
                     const Tensor& packed) {
  int64_t max_blocks = 0, blocks = 1;
  for (int64_t c : contexts) {
    max_blocks = std::max(max_blocks, (c + block_size - 1) / block_size);
    blocks += (c + block_size - 1) / block_size;
  }
  PagedKeys paged{Tensor(allocator(), {blocks, block_size, shape.num_kv_heads, shape.head_dim}, packed.dtype()),
                  Tensor(allocator(), {blocks, block_size, shape.num_kv_heads, shape.head_dim}, packed.dtype()),
                  {}};
  std::memset(paged.keys.raw(), 0xff, paged.keys.bytes());
  std::memset(paged.values.raw(), 0xff, paged.values.bytes());
  std::vector<int32_t> tables(contexts.size() * static_cast<size_t>(max_blocks), 0), slots;
  int64_t next = blocks - 1;
  for (size_t s = 0; s < contexts.size(); ++s) {
    for (int64_t j = 0; j < contexts[s]; ++j) {
      if (j % block_size == 0)
        tables[s * static_cast<size_t>(max_blocks) + static_cast<size_t>(j / block_size)] =
            static_cast<int32_t>(next--);
      int64_t block = tables[s * static_cast<size_t>(max_blocks) + static_cast<size_t>(j / block_size)];
      slots.push_back(static_cast<int32_t>(block * block_size + j % block_size));
    }
  }
  cpu_table()->kv_write(stream(), {.num_heads = shape.num_heads,
                                   .num_kv_heads = shape.num_kv_heads,
                                   .head_dim = shape.head_dim,
                                   .qkv = packed,
                                   .slots = int_tensor(slots),
                                   .cache = core::kv_layer_of(paged.keys, paged.values)});
  paged.block_tables = int_tensor(tables, {static_cast<int64_t>(contexts.size()), max_blocks});
  return paged;
}

// The last `queries` tokens of each sequence, with everything before them in the cache, against the whole at once.
TEST(CpuAttention, PagedDecodeEqualsPrefillBitForBit) {
  std::vector<int64_t> contexts{1, 64, 65, 200};
  RaggedBatch whole = make_batch(contexts, 0);
  for (const Format& format : kFormats) {
    for (const AttentionShape& shape : {make_shape(4, 2, 64), make_shape(2, 2, 48, 70), make_shape(8, 1, 24)}) {
      Tensor qkv = random_tensor({whole.num_tokens, width_of(shape)}, format.dtype, 1);
      Tensor expected = forward(*cpu_table(), shape, whole, qkv).out;
      for (int64_t block_size : {1, 16, 48, 128}) {
        PagedKeys paged = make_paged(shape, contexts, block_size, qkv);
        for (int64_t queries : {1, 7}) {
          std::vector<int64_t> here, cached;
          for (int64_t c : contexts) here.push_back(std::min(c, queries)), cached.push_back(c - here.back());
          RaggedBatch batch = make_batch(here, 2, cached);
          Tensor rows = zero_tensor({batch.num_tokens, width_of(shape)}, format.dtype);
          std::vector<int64_t> source;
          for (size_t s = 0, first = 0; s < contexts.size(); first += static_cast<size_t>(contexts[s++])) {
            for (int64_t i = 0; i < here[s]; ++i) source.push_back(static_cast<int64_t>(first) + cached[s] + i);
          }
          for (size_t i = 0; i < source.size(); ++i) {
            Tensor to = rows.slice(static_cast<int64_t>(i), 1), from = qkv.slice(source[i], 1);
            std::memcpy(to.raw(), from.raw(), to.bytes());
          }
          Tensor out = empty_tensor({batch.num_tokens, shape.num_heads * shape.head_dim}, format.dtype);
          AttentionForwardArgs args{.shape = shape,
                                    .batch = &batch,
                                    .qkv = rows,
                                    .cache = core::kv_layer_of(paged.keys, paged.values),
                                    .block_tables = paged.block_tables,
                                    .out = out};
          cpu_table()->attention_forward(stream(), args);
          for (size_t i = 0; i < source.size(); ++i) {
            ASSERT_TRUE(bit_equal(out.slice(static_cast<int64_t>(i), 1), expected.slice(source[i], 1)))
                << base::dtype_name(format.dtype) << ", blocks of " << block_size << ", row " << source[i];
          }
          Tensor reference_out = clone(out);
          args.out = reference_out;
          reference_table()->attention_forward(stream(), args);
          expect_close(out, reference_out, format.tolerance, "paged attention");
        }
      }
    }
  }
}

// Caches in other formats than the rows: what is stored, attention beside the reference, and the same bits whether a
// token comes alone or with others.
TEST(CpuAttention, CodedCachesMatchTheReferenceInAnyBatch) {
  for (const Format& format : kFormats) {
    for (DType stored : {DType::u8, DType::i8, DType::f8e4m3, DType::f8e5m2, DType::f16}) {
      if (stored == format.dtype) continue;
      for (const AttentionShape& shape : {make_shape(4, 2, 64), make_shape(2, 2, 96, 70)}) {
        const std::vector<int64_t> contexts{1, 67, 130};
        RaggedBatch whole = make_batch(contexts, 0, {0, 0, 0});
        Tensor qkv = random_tensor({whole.num_tokens, width_of(shape)}, format.dtype, 1);
        core::KvCacheShape room{.num_blocks = 15,
                                .block_size = 16,
                                .num_kv_heads = shape.num_kv_heads,
                                .head_dim = shape.head_dim,
                                .formats = {stored},
                                .layer_places = {}};
        core::KvCache cache(allocator(), room, 0.0625f), other(allocator(), room, 0.0625f);
        std::vector<int32_t> tables(3 * 9, 0), slots;
        for (int32_t s = 0, next = 14; s < 3; ++s) {
          for (int32_t j = 0; j < contexts[static_cast<size_t>(s)]; ++j) {
            int32_t& block = tables[static_cast<size_t>(s * 9 + j / 16)];
            if (j % 16 == 0) block = next--;
            slots.push_back(block * 16 + j % 16);
          }
        }
        auto write = [&](const KernelTable& table, const core::KvCache& to) {
          std::memset(to.data().raw(), 0, to.data().bytes());
          table.kv_write(stream(), {.num_heads = shape.num_heads,
                                    .num_kv_heads = shape.num_kv_heads,
                                    .head_dim = shape.head_dim,
                                    .qkv = qkv,
                                    .slots = int_tensor(slots),
                                    .cache = to.layer(0)});
        };
        write(*cpu_table(), cache), write(*reference_table(), other);
        const std::string name =
            std::string(base::dtype_name(stored)) + " under " + std::string(base::dtype_name(format.dtype));
        EXPECT_TRUE(bit_equal(cache.data(), other.data())) << name;
        auto attend = [&](const KernelTable& table, const RaggedBatch& batch, const Tensor& rows,
                          const Tensor& blocks) {
          Tensor out = empty_tensor({batch.num_tokens, shape.num_heads * shape.head_dim}, format.dtype);
          table.attention_forward(stream(), {.shape = shape,
                                             .batch = &batch,
                                             .qkv = rows,
                                             .cache = cache.layer(0),
                                             .block_tables = blocks,
                                             .out = out});
          return out;
        };
        const Tensor blocks = int_tensor(tables, {3, 9}), out = attend(*cpu_table(), whole, qkv, blocks);
        // Under bf16 the stored numbers are rounded once more.
        const double tolerance = (format.dtype == DType::bf16 ? 2 : 1) * format.tolerance;
        expect_close(out, attend(*reference_table(), whole, qkv, blocks), tolerance, name);
        const RaggedBatch last = make_batch({1}, 0, {129});
        const std::vector<int32_t> own(tables.begin() + 18, tables.end());
        const Tensor alone = attend(*cpu_table(), last, qkv.slice(197, 1), int_tensor(own, {1, 9}));
        EXPECT_TRUE(bit_equal(alone, out.slice(197, 1))) << name;
      }
    }
  }
}

TEST(CpuAttention, ANotANumberIsNotHidden) {
  for (const Format& format : kFormats) {
    AttentionShape shape = make_shape(1, 1, 16);
    RaggedBatch batch = make_batch({70}, 0);
    Tensor qkv = random_tensor({70, 48}, format.dtype, 1);
    std::memset(qkv.slice(3, 1).data<char>() + 16 * base::dtype_bytes(format.dtype), 0xff,
                base::dtype_bytes(format.dtype));
    Tensor out = forward(*cpu_table(), shape, batch, qkv).out;
    EXPECT_TRUE(std::isnan(core::to_host_floats(out.slice(69, 1))[0])) << base::dtype_name(format.dtype);
  }
}

}  // namespace
}  // namespace sinter::kernels
