// Rewrites the events of a tree many times, so that a small file becomes a large one.
//
// The copies must compress like data: of floating-point values the low bits are drawn anew for each
// copy, by integer operations alone.  Whatever is not a floating-point value is copied as it is.

#include "copy.hpp"

#include <functional>

namespace treehammer {

/// Takes consecutive values in memory.
using Visit = std::function<void(void *values, std::size_t count)>;

/// Where the numbers of one leaf are, entry by entry: `each` calls its argument for every run.
struct Numbers {
   EDataType type = kOther_t;
   std::function<void(const Visit &)> each;
};

/// The type of number in a vector, or in vectors of vectors; kOther_t for anything else.
inline EDataType numberIn(const TClass *type)
{
   auto *proxy = type ? type->GetCollectionProxy() : nullptr;
   if (!proxy || proxy->HasPointers() || proxy->GetCollectionType() != ROOT::kSTLvector)
      return kOther_t;
   return proxy->GetValueClass() ? numberIn(proxy->GetValueClass()) : proxy->GetType();
}

/// Vectors without a dictionary are no std::vector in memory: ROOT's proxies know where values are.
inline void walk(void *object, TVirtualCollectionProxy &proxy, const Visit &visit)
{
   TVirtualCollectionProxy::TPushPop scope(&proxy, object);
   const auto size = proxy.Size();
   auto *inner = proxy.GetValueClass();
   if (size != 0 && !inner)
      visit(proxy.At(0), size);
   for (unsigned i = 0; inner && i < size; ++i)
      walk(proxy.At(i), *inner->GetCollectionProxy(), visit);
}

inline Numbers plainNumbers(TLeaf &leaf)
{
   const std::string name = leaf.GetTypeName();
   const auto type = name == "Float_t"                                              ? kFloat_t
                     : name == "Double_t"                                           ? kDouble_t
                     : name == "Float16_t" || name == "Double32_t" || name.empty() ? kOther_t
                                                                                    : kInt_t;
   return {type, [&leaf](const Visit &visit) {
              visit(leaf.GetValuePointer(), static_cast<std::size_t>(leaf.GetLen()));
           }};
}

/// A member of an object, or a whole top-level object, in a branch of its own.
inline Numbers elementNumbers(TBranchElement &branch, TLeaf &leaf)
{
   TClass *type = nullptr;
   EDataType number = kOther_t;
   if (branch.GetExpectedType(type, number))
      return {};
   const bool floating = number == kFloat_t || number == kDouble_t;
   if (branch.GetBranchCount()) // a member of the objects in a collection: not reached here
      return {floating ? kOther_t : number, {}};
   const int offset = branch.GetID() < 0 ? 0 : branch.GetInfo()->GetElementOffset(branch.GetID());
   if (!type)
      return {number, [&branch, &leaf, offset](const Visit &visit) {
                 if (auto *object = branch.GetObject())
                    visit(object + offset, static_cast<std::size_t>(leaf.GetLenStatic()));
              }};
   return {numberIn(type), [&branch, type, offset](const Visit &visit) {
              if (auto *object = branch.GetObject())
                 walk(object + offset, *type->GetCollectionProxy(), visit);
           }};
}

inline Numbers numbers(TLeaf &leaf)
{
   auto *branch = leaf.GetBranch();
   if (branch->IsA() == TBranch::Class())
      return plainNumbers(leaf);
   auto *element = dynamic_cast<TBranchElement *>(branch);
   return element ? elementNumbers(*element, leaf) : Numbers();
}

/// A floating-point leaf whose copies are to differ.
class Noise {
public:
   virtual ~Noise() = default;
   virtual void learn() = 0;                     ///< from the entry in memory
   virtual bool decide(unsigned keptBits) = 0;   ///< whether there are bits to draw
   virtual void apply(std::uint64_t event) = 0;  ///< to the entry in memory
};

/// Draws the mantissa bits that some value of the leaf uses, below the leading `keptBits`.
///
/// Experiments cut their mantissas where precision ends.  Bits that are 0 in every value of the leaf
/// stay 0, or the copies would compress worse than any data.  Zeros, denormal numbers, infinities
/// and NaN stay what they are.
template <class T, class Word, int Mantissa>
class LowBits final : public Noise {
public:
   LowBits(Numbers numbers, std::uint64_t seed) : fNumbers(std::move(numbers)), fSeed(seed) {}

   void learn() override
   {
      each([this](Word word) {
         fUsed |= word & kMantissa;
         return word;
      });
   }

   bool decide(unsigned keptBits) override
   {
      const int high = Mantissa - static_cast<int>(keptBits);
      const int low = fUsed == 0 ? Mantissa : __builtin_ctzll(fUsed);
      fMask = high > low ? (Word(1) << high) - (Word(1) << low) : 0;
      return fMask != 0;
   }

   void apply(std::uint64_t event) override
   {
      auto random = stream(fSeed, event);
      each([&](Word word) { return word ^ (Word(random.next()) & fMask); });
   }

private:
   template <class Change>
   void each(Change change)
   {
      fNumbers.each([&](void *values, std::size_t count) {
         auto *bytes = static_cast<char *>(values);
         for (std::size_t i = 0; i < count; ++i, bytes += sizeof(Word)) {
            Word word;
            std::memcpy(&word, bytes, sizeof word);
            const Word exponent = word & kExponent;
            if (exponent == 0 || exponent == kExponent)
               continue;
            word = change(word);
            std::memcpy(bytes, &word, sizeof word);
         }
      });
   }

   static constexpr Word kMantissa = (Word(1) << Mantissa) - 1;
   static constexpr Word kExponent = (~Word(0) >> 1) & ~kMantissa;
   Numbers fNumbers;
   std::uint64_t fSeed;
   Word fUsed = 0, fMask = 0;
};

/// What became of the leaves.
struct LeafCounts {
   int perturbed = 0; ///< floating-point, low bits drawn
   int exact = 0;     ///< floating-point without bits to draw, copied as they are
   int integer = 0;   ///< integers, counters, flags and text
   int object = 0;    ///< parts of classes that are copied as they are
};

class Merger final : public Copier {
public:
   Merger(TTree &source, std::uint64_t seed) : Copier(source), fSeed(seed) {}

   /// Look at all values, to know which bits of each leaf are used.
   LeafCounts learn(unsigned keptBits)
   {
      read(0); // from here on there are objects
      LeafCounts counts;
      std::vector<std::unique_ptr<Noise>> found;
      for (auto *item : *fSource.GetListOfBranches())
         find(*static_cast<TBranch *>(item), found, counts);
      for (Long64_t entry = 0; entry < fSource.GetEntries(); ++entry) {
         read(entry);
         for (auto &noise : found)
            noise->learn();
      }
      for (auto &noise : found) {
         if (noise->decide(keptBits))
            fNoise.push_back(std::move(noise));
         else
            ++counts.exact;
      }
      counts.perturbed = static_cast<int>(fNoise.size());
      return counts;
   }

   void open(const std::string &url, int compression, Long64_t cluster, Long64_t basketMemory)
   {
      create(url, "", compression);
      fTree->SetBasketSize("*", kFirstBaskets);
      fTree->SetAutoFlush(cluster);
      fCluster = cluster;
      fBasketMemory = basketMemory;
   }

   /// Write events of the result; the first copy is the source itself.
   void fill(Long64_t first, Long64_t last)
   {
      for (Long64_t event = first; event < last; ++event) {
         read(event % fSource.GetEntries());
         if (event >= fSource.GetEntries())
            for (auto &noise : fNoise)
               noise->apply(static_cast<std::uint64_t>(event));
         if (fTree->Fill() < 0)
            throw std::runtime_error("cannot be written");
         if (event + 1 == fCluster) // there is something to learn from now
            fTree->OptimizeBaskets(static_cast<ULong64_t>(fBasketMemory), 1.1, "");
      }
      checkWritten(*fFile);
   }

private:
   void find(TBranch &branch, std::vector<std::unique_ptr<Noise>> &found, LeafCounts &counts)
   {
      if (branch.TestBit(::kDoNotProcess))
         return;
      const bool parent = branch.GetListOfBranches()->GetEntriesFast() != 0;
      for (auto *item : *branch.GetListOfLeaves()) {
         if (parent)
            break; // its leaf only counts what is below
         auto &leaf = *static_cast<TLeaf *>(item);
         auto where = numbers(leaf);
         const auto seed = seedOf(branch.GetFullName().Data(), leaf.GetName());
         if (where.type == kFloat_t)
            found.push_back(std::make_unique<LowBits<float, std::uint32_t, 23>>(std::move(where), seed));
         else if (where.type == kDouble_t)
            found.push_back(std::make_unique<LowBits<double, std::uint64_t, 52>>(std::move(where), seed));
         else if (where.type == kOther_t || where.type == kFloat16_t || where.type == kDouble32_t ||
                  where.type == kNoType_t)
            ++counts.object;
         else
            ++counts.integer;
      }
      for (auto *child : *branch.GetListOfBranches())
         find(*static_cast<TBranch *>(child), found, counts);
   }

   /// A stream of its own for every leaf.
   std::uint64_t seedOf(const std::string &branch, const std::string &leaf) const
   {
      auto seed = fSeed;
      for (unsigned char letter : branch + "\n" + leaf)
         seed = Random(seed ^ letter).next();
      return seed;
   }

   std::uint64_t fSeed;
   std::vector<std::unique_ptr<Noise>> fNoise;
   Long64_t fCluster = 0, fBasketMemory = 0;
};

} // namespace treehammer
