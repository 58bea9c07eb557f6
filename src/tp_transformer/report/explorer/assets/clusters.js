// Clusters of vectors, and vectors that are alike.

function squaredDistance(a, b) {
  let sum = 0;
  for (let i = 0; i < a.length; i++) sum += (a[i] - b[i]) ** 2;
  return sum;
}

function cosine(a, b) {
  let product = 0;
  let lengths = 1e-30;
  let other = 1e-30;
  for (let i = 0; i < a.length; i++) {
    product += a[i] * b[i];
    lengths += a[i] * a[i];
    other += b[i] * b[i];
  }
  return product / Math.sqrt(lengths * other);
}

function length(vector) {
  return Math.hypot(...vector);
}

function nearestCentroid(vector, centroids) {
  let best = 0;
  for (let c = 1; c < centroids.length; c++)
    if (squaredDistance(vector, centroids[c]) < squaredDistance(vector, centroids[best])) best = c;
  return best;
}

function meanOf(vectors) {
  const mean = new Float64Array(vectors[0].length);
  for (const vector of vectors) for (let i = 0; i < mean.length; i++) mean[i] += vector[i];
  return mean.map((value) => value / vectors.length);
}

// k-means without chance: each first centroid is the vector farthest from those before it. Clusters
// are numbered in the order in which they appear among the vectors.
function kMeans(vectors, k) {
  let centroids = [vectors[0]];
  const apart = (vector) => Math.min(...centroids.map((each) => squaredDistance(vector, each)));
  while (centroids.length < Math.min(k, vectors.length)) {
    const distances = vectors.map(apart);
    const farthest = distances.indexOf(Math.max(...distances));
    if (distances[farthest] === 0) break; // no more different vectors
    centroids.push(vectors[farthest]);
  }
  for (let iteration = 0; iteration < 20; iteration++) {
    const assigned = vectors.map((vector) => nearestCentroid(vector, centroids));
    centroids = centroids.map((centroid, c) => {
      const own = vectors.filter((_, v) => assigned[v] === c);
      return own.length ? meanOf(own) : centroid;
    });
  }
  const order = [...new Set(vectors.map((vector) => nearestCentroid(vector, centroids)))];
  return order.map((c) => centroids[c]);
}

// The clusters of one head: those of `tpt interpret roles` where the page has them, or else those
// of the vectors of the questions on the page.
function clustersOf(panes, pane, point, head, k) {
  const own = DATA.roles;
  if (own && pane.model === 0 && point === `encoder.${own.layer}.self_attention`) {
    const found = own.heads.find((each) => each.head === head);
    if (found) return { centroids: found.centroids, names: found.names, isFile: true };
  }
  const vectors = [];
  for (const each of panes) {
    const recorded = each.base && each.model === pane.model ? each.base.points[point] : null;
    for (let t = 0; recorded && recorded.vectors && t < recorded.nQueries; t++)
      vectors.push(vectorAt(recorded, each.config, head, t));
  }
  const centroids = vectors.length ? kMeans(vectors, k) : [];
  return { centroids, names: centroids.map(() => null), isFile: false };
}
