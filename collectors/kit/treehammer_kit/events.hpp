// Selection of events: all of them, or a seeded fraction.
#ifndef TREEHAMMER_EVENTS
#define TREEHAMMER_EVENTS

#include <RtypesCore.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <vector>

namespace treehammer {

inline uint64_t Mix(uint64_t x) // splitmix64
{
   x += 0x9E3779B97F4A7C15ull;
   x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ull;
   x = (x ^ (x >> 27)) * 0x94D049BB133111EBull;
   return x ^ (x >> 31);
}

inline int CompareHashes(const void *left, const void *right)
{
   const uint64_t a = *static_cast<const uint64_t *>(left), b = *static_cast<const uint64_t *>(right);
   return a < b ? -1 : a > b;
}

/// The max(1, round(fraction * total)) entries with the smallest seeded hashes, in ascending order:
/// uniform, the same on every machine, and a smaller fraction is a subset of a larger one.
/// Counts the hashes by their highest bits and sorts one part of them: cling takes 0.1 s to compile
/// std::nth_element and std::sort.
inline std::vector<Long64_t> SampleEntries(Long64_t total, double fraction, uint64_t seed)
{
   if (total == 0)
      return {};
   const uint64_t mixed = Mix(seed);
   const auto hash = [mixed](Long64_t entry) { return Mix(mixed ^ uint64_t(entry)); };
   constexpr int shift = 48;
   std::vector<uint64_t> counts(1 << (64 - shift));
   for (Long64_t entry = 0; entry < total; ++entry)
      ++counts[hash(entry) >> shift];
   uint64_t wanted = std::min(total, std::max<Long64_t>(1, std::llround(fraction * total))), part = 0;
   while (wanted > counts[part])
      wanted -= counts[part++];
   std::vector<uint64_t> hashes; // of the part with the largest one that is wanted
   for (Long64_t entry = 0; entry < total; ++entry)
      if (hash(entry) >> shift == part)
         hashes.push_back(hash(entry));
   std::qsort(hashes.data(), hashes.size(), sizeof(uint64_t), CompareHashes);
   std::vector<Long64_t> entries;
   for (Long64_t entry = 0; entry < total; ++entry)
      if (hash(entry) <= hashes[wanted - 1])
         entries.push_back(entry);
   return entries;
}

/// Entry numbers to read: all of them, or a list.
class Entries {
   const Long64_t *fList = nullptr;
   Long64_t fFirst = 0, fLast = 0;

public:
   class Iterator {
      const Long64_t *fList;
      Long64_t fAt;

   public:
      Iterator(const Long64_t *list, Long64_t at) : fList(list), fAt(at) {}
      Long64_t operator*() const { return fList ? fList[fAt] : fAt; }
      Iterator &operator++()
      {
         ++fAt;
         return *this;
      }
      bool operator!=(const Iterator &other) const { return fAt != other.fAt; }
   };
   Entries() = default;
   explicit Entries(Long64_t size) : fLast(size) {}
   explicit Entries(const std::vector<Long64_t> &list) : fList(list.data()), fLast(list.size()) {}
   Iterator begin() const { return {fList, fFirst}; }
   Iterator end() const { return {fList, fLast}; }
   Long64_t size() const { return fLast - fFirst; }

   /// The entries from position `first` up to, not including, position `last`.
   Entries Slice(Long64_t first, Long64_t last) const
   {
      Entries part = *this;
      part.fFirst = fFirst + first;
      part.fLast = fFirst + last;
      return part;
   }
};

} // namespace treehammer
#endif
