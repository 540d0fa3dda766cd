// Selection of events: all of them, or a seeded fraction.
#ifndef TREEHAMMER_EVENTS
#define TREEHAMMER_EVENTS

#include <RtypesCore.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <utility>
#include <vector>

namespace treehammer {

inline uint64_t Mix(uint64_t x) // splitmix64
{
   x += 0x9E3779B97F4A7C15ull;
   x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ull;
   x = (x ^ (x >> 27)) * 0x94D049BB133111EBull;
   return x ^ (x >> 31);
}

/// The max(1, round(fraction * total)) entries with the smallest seeded hashes, in ascending order:
/// uniform, the same on every machine, and a smaller fraction is a subset of a larger one.
inline std::vector<Long64_t> SampleEntries(Long64_t total, double fraction, uint64_t seed)
{
   std::vector<std::pair<uint64_t, Long64_t>> hashed(total);
   for (Long64_t entry = 0; entry < total; ++entry)
      hashed[entry] = {Mix(Mix(seed) ^ uint64_t(entry)), entry};
   const auto wanted = std::min(total, std::max<Long64_t>(1, std::llround(fraction * total)));
   std::nth_element(hashed.begin(), hashed.begin() + std::max<Long64_t>(0, wanted - 1), hashed.end());
   std::vector<Long64_t> entries;
   for (Long64_t i = 0; i < wanted; ++i)
      entries.push_back(hashed[i].second);
   std::sort(entries.begin(), entries.end());
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
